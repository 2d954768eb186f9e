"""The machine, the versions and the commit of a measurement."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("torch", "transformers", "ray")
_STOLEN = 7  # after user, nice, system, idle, iowait, irq, softirq; man 5 proc


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, versions, commit and day, as words."""
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{_memory_gib():.0f} GiB",
        "python": platform.python_version(),
        **versions,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def now() -> str:
    """The time in UTC, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")


def as_line(machine: dict[str, str]) -> str:
    """The description of a machine on one line."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def stolen_s(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds since boot, of all cores together, in which the host computed for others.

    A virtual machine had to wait in this time. None if the system does not tell it.
    """
    try:
        name, *ticks = stat.read_text().splitlines()[0].split()
        return int(ticks[_STOLEN]) / os.sysconf("SC_CLK_TCK") if name == "cpu" else None
    except (OSError, ValueError, IndexError):
        return None


def _processor() -> str:
    flags, name, family = "", platform.processor(), ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            name = value
        elif key == "cpu family":
            family = value
        elif key == "flags":
            flags = value
            break
    shown = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{name} family {family} ({' '.join(shown)})"


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def commit() -> str:
    """The commit, and a mark if the tree differs from it."""
    try:
        short = _git("rev-parse", "--short=10", "HEAD")
        return short + (" with changes" if _git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
