"""What an engine computes on, where nobody says."""

from __future__ import annotations

import torch


def best_device() -> torch.device:
    """The CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
