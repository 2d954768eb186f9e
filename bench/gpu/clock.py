"""The limits of the machine, and a report that is written as it goes."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from bench.gpu.model import GpuScale
from engine.model.trials.device_timer import device_seconds


def bandwidth(scale: GpuScale, device: torch.device) -> dict[str, float]:
    """Bytes per second: read alone (a sum of random numbers), and a copy, read and written."""
    source = torch.empty(scale.copy_bytes // 4, device=device).uniform_()
    target = torch.empty_like(source)
    read = device_seconds(lambda: source.sum(), device, scale.repeats)
    copy = device_seconds(lambda: target.copy_(source), device, scale.repeats)
    return {"read": source.nbytes / read, "copy": 2 * source.nbytes / copy}


def matrix_rate(scale: GpuScale, device: torch.device) -> float:
    """Operations per second of a large product of random numbers, in the model's precision."""
    n = scale.matrix
    a, b = torch.randn(2, n, n, device=device).to(scale.dtype)
    return 2 * n**3 / device_seconds(lambda: a @ b, device, scale.repeats)


def describe(device: torch.device) -> dict[str, Any]:
    """Machine, versions and commit."""
    told: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
        "device": platform.processor() or platform.machine(),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        told |= {"device": about.name, "processors": about.multi_processor_count}
        told |= {"memory_gib": round(about.total_memory / 2**30, 1), "cuda": torch.version.cuda}
    return told


def _commit() -> str | None:
    try:
        asked = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class GpuReport:
    """Rows by section; each is printed and written at once, so that a time limit loses none."""

    def __init__(self, path: Path, head: dict[str, Any], limit_s: float) -> None:
        self.head = head
        self._path = path
        self._sections: dict[str, list[dict[str, Any]]] = {}
        self._ends = time.monotonic() + limit_s
        self._write()

    @property
    def is_late(self) -> bool:
        """Whether the time is over: what has not begun is left out."""
        return time.monotonic() > self._ends

    def note(self, **values: Any) -> None:
        """Add to the head."""
        self.head |= values
        print(*(f"{name}: {_short(value)}" for name, value in values.items()), flush=True)
        self._write()

    def row(self, section: str, /, **values: Any) -> None:
        """Add a row."""
        if section not in self._sections:
            print(f"\n{section}", flush=True)
        self._sections.setdefault(section, []).append(values)
        print("  " + "  ".join(f"{n} {_short(v)}" for n, v in values.items()), flush=True)
        self._write()

    @property
    def sections(self) -> dict[str, list[dict[str, Any]]]:
        """All rows by section."""
        return self._sections

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({**self.head, **self._sections}, indent=1) + "\n")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
