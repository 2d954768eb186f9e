"""The free memory of a device, or of this process's control group."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from engine.errors import ConfigError

_MEMINFO = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def free_bytes(
    device: torch.device, meminfo: Path = _MEMINFO, control_group: Path = _CONTROL_GROUP
) -> int:
    """Bytes that can be allocated now; ConfigError where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    left = _left_in_group(control_group)
    available = _available(meminfo)
    return available if left is None else min(available, left)


def _available(meminfo: Path) -> int:
    """The bytes that Linux can give without swapping (MemAvailable)."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("kv: /proc/meminfo names no MemAvailable; set kv.blocks")


def _left_in_group(group: Path) -> int | None:
    """The bytes that a container's limit leaves; None without a limit.

    Cached files count as free, as the system can drop them.
    """
    with suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())  # "max" is no number: no limit
        used = int((group / "memory.current").read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        files = next((int(value) for name, value in lines if name == "inactive_file"), 0)
        return max(0, limit - used + files)
    return None
