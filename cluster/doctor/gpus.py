"""The GPUs, how they are linked, and NCCL."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cluster.doctor.findings import Finding, Severity

_GIB = 1 << 30
_TIMEOUT_S = 20.0
Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device as torch sees it; `capability` such as 9.0, `memory` in bytes."""

    name: str
    memory: int
    capability: tuple[int, int]


def gpus_here() -> list[Gpu]:
    """The CUDA devices that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    return [Gpu(one.name, one.total_memory, (one.major, one.minor)) for one in found]


def nccl_here() -> str | None:
    """The version of NCCL in this build of torch; None without it."""
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def command_output(command: Sequence[str]) -> str | None:
    """What a command prints; None where it is not there, or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def look_at_gpus(
    gpus: Sequence[Gpu], collectives: str | None, run: Run = command_output
) -> Iterator[Finding]:
    """Each device, and what is between them."""
    if not gpus:
        yield from _without(run)
        return
    for number, gpu in enumerate(gpus):
        what = f"{gpu.name}, {gpu.memory / _GIB:.0f} GiB, {gpu.capability[0]}.{gpu.capability[1]}"
        if gpu.capability < (8, 0):
            change = "8.0 or newer (A100, H100): older ones have no bfloat16"
            yield Finding(f"GPU {number}", Severity.WARNING, what, change)
        else:
            yield Finding(f"GPU {number}", Severity.OK, what)
    if len(gpus) > 1:
        links = _links(run(["nvidia-smi", "topo", "-m"]) or "")
        yield Finding("GPU links", Severity.OK if links else Severity.NOTE, links or "unknown")
    if collectives is None:
        change = "install torch's CUDA build; without NCCL, KV goes through host memory"
        yield Finding("NCCL", Severity.WARNING, "not in this build of torch", change)
    else:
        yield Finding("NCCL", Severity.OK, collectives)


def _without(run: Run) -> Iterator[Finding]:
    names = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    if names and names.strip():
        found = f"the driver knows {len(names.strip().splitlines())}, and torch sees none"
        change = "install torch's CUDA build, and look at CUDA_VISIBLE_DEVICES"
        yield Finding("GPU", Severity.ERROR, found, change)
    else:
        yield Finding("GPU", Severity.NOTE, "none: replicas compute on the processor")


def _links(topology: str) -> str:
    """How pairs of GPUs are linked, by kind: NV for NVLink, others as nvidia-smi names them."""
    kinds: dict[str, int] = {}
    rows = [line.split() for line in topology.splitlines() if line.startswith("GPU")]
    for row, cells in enumerate(rows):
        for kind in cells[row + 2 : len(rows) + 1]:
            kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
