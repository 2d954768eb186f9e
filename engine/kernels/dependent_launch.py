"""Programmatic dependent launch: a kernel's programs start while the kernel before them ends.

A kernel that is launched so must call `gdc_wait` before it reads what another kernel wrote, and
before it writes anything. Kernels take the constant PDL for that.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

import torch

# Hopper is the first architecture that has it.
_LEAST_CAPABILITY = (9, 0)


@dataclass(slots=True)
class DependentLaunch:
    """Whether kernels are launched so; shared by all launches of one forward."""

    on: bool = False

    @property
    def options(self) -> dict[str, bool]:
        """Constants and options of a launch; Triton before 3.3 does not know the second one."""
        return {"PDL": True, "launch_pdl": True} if self.on else {"PDL": False}


def why_no_dependent_launch(device: torch.device) -> str | None:
    """The reason if kernels on this device cannot be launched so, else None."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "the device is older than Hopper"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    cuda = importlib.import_module("triton.language.extra.cuda")
    options = importlib.import_module("triton.backends.nvidia.compiler").CUDAOptions
    calls = hasattr(cuda, "gdc_wait") and hasattr(cuda, "gdc_launch_dependents")
    return None if calls and hasattr(options, "launch_pdl") else "this triton does not have it"
