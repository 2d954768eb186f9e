"""Seconds of a launch on a CUDA device whose cache holds none of its data."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

# More than the second-level cache of any device so far. Writing it takes longer than the host needs
# for the launches behind it, so that their gaps are not counted.
_FLUSH_BYTES = 256 * 2**20
# A measurement of one shape takes a few milliseconds.
_REPEATS = 15


class DeviceTimer:
    """Median seconds of a call by the device's own events; two calls before are not counted."""

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)

    def __call__(self, run: Callable[[], object]) -> float:
        """Run it again and again, each time behind a write that fills the cache."""
        run()
        run()
        marks = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(_REPEATS)]
        for before, after in marks:
            self._flush.zero_()
            before.record()
            run()
            after.record()
        torch.cuda.synchronize(self._flush.device)
        return float(statistics.median(b.elapsed_time(a) for b, a in marks)) / 1e3
