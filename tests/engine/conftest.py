"""Without a CUDA device, Triton's kernels are interpreted; it must be said before they load."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
