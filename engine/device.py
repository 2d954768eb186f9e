"""The device that an engine computes on by default."""

from __future__ import annotations

import torch


def best_device() -> torch.device:
    """The CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
