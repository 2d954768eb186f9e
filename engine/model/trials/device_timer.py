"""Seconds of a call: by the events of a CUDA device, or by the clock of the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

# Seconds of a call.
Timer = Callable[[Callable[[], object]], float]

# More than the second-level cache of any device so far. Writing it takes longer than the host needs
# for the launches behind it, so that their gaps are not counted.
_FLUSH_BYTES = 256 * 2**20
# A measurement of one shape takes a few milliseconds.
_REPEATS = 15


class ColdTimer:
    """A Timer for a CUDA device whose cache holds none of the call's data.

    The time is the median of 15 calls, each behind a write that fills the cache.
    """

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)

    def __call__(self, run: Callable[[], object]) -> float:
        """Median seconds of the call."""
        return device_seconds(run, self._flush.device, _REPEATS, before=self._flush.zero_)


def device_seconds(
    run: Callable[[], object],
    device: torch.device,
    repeats: int,
    before: Callable[[], object] = lambda: None,
) -> float:
    """Median seconds of a call on the device, by its own events; on a CPU by the host's clock.

    A first call is not counted, as it may compile. `before` comes ahead of each other call and is
    not counted either.
    """
    if device.type != "cuda":
        return host_seconds(run, repeats, before)
    run()
    marks = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(repeats)]
    for begin, end in marks:
        before()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize(device)
    return float(statistics.median(begin.elapsed_time(end) for begin, end in marks)) / 1e3


def host_seconds(
    run: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None
) -> float:
    """Median seconds of a call that ends with its answer on the host; see `device_seconds`."""
    run()
    times = []
    for _ in range(repeats):
        before()
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)
