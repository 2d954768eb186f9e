"""The device that an engine computes on by default, and marks in the work that it was given."""

from __future__ import annotations

from typing import Protocol

import torch


def best_device() -> torch.device:
    """The CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class DeviceMark(Protocol):
    """A point in the work that a thread launched; the device passes it by and by."""

    def passed(self) -> bool:
        """Whether all work before the mark is done; waits for nothing."""
        ...

    def wait(self) -> None:
        """Wait until the device has passed the mark."""
        ...

    def seconds_since(self, before: DeviceMark) -> float:
        """The device's time from one passed mark to this passed mark."""
        ...


class CudaMark:
    """A mark behind all work that this thread launched on a CUDA device.

    UNVERIFIED on a GPU: tests have a stand-in for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        """See DeviceMark."""
        return bool(self._event.query())

    def wait(self) -> None:
        """See DeviceMark."""
        self._event.synchronize()

    def seconds_since(self, before: DeviceMark) -> float:
        """See DeviceMark; `before` is a mark of the same device."""
        if not isinstance(before, CudaMark):
            raise TypeError(f"a CudaMark is wanted, not a {type(before).__name__}")
        return float(before._event.elapsed_time(self._event)) / 1e3
