"""CUDA streams that one link has to itself.

torch has 32 streams of a priority and hands them out in rotation. So two links could share one, and
the copies of one link would wait for messages of the other link's peer.

UNVERIFIED on a GPU: the driver's call has not run.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable

import torch

_log = logging.getLogger(__name__)
# cuda.h: CU_STREAM_NON_BLOCKING, which does not wait for the default stream.
_NON_BLOCKING = 1
# Above the engine's streams, which have 0.
_PRIORITY = -1


class CudaStreams:
    """Streams of high priority, each with one user from `take` to `give`; any thread may call."""

    def __init__(self, make: Callable[[torch.device], torch.cuda.Stream]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._free: dict[torch.device, list[torch.cuda.Stream]] = {}

    def take(self, device: torch.device) -> torch.cuda.Stream:
        """A stream that has no other user."""
        with self._lock:
            free = self._free.get(device)
            if free:
                return free.pop()
        return self._make(device)

    def give(self, stream: torch.cuda.Stream) -> None:
        """Give back a stream; one whose work has not ended is not used again."""
        try:
            idle = stream.query()
        except RuntimeError:  # an error of the device, which others will see too
            return
        if idle:
            with self._lock:
                self._free.setdefault(stream.device, []).append(stream)


def make_stream(device: torch.device) -> torch.cuda.Stream:
    """A new stream of the driver, or of torch's pool where the driver refuses."""
    # The driver makes streams in the context of this thread's device.
    torch.cuda.set_device(device)
    handle = ctypes.c_void_p()
    try:
        create = ctypes.CDLL("libcuda.so.1").cuStreamCreateWithPriority
        status = create(ctypes.byref(handle), _NON_BLOCKING, _PRIORITY)
    except (OSError, AttributeError) as error:
        status = error
    if status or not handle.value:
        _log.warning("a link shares torch's CUDA streams: the driver made none (%s)", status)
        return torch.cuda.Stream(device, priority=_PRIORITY)
    return torch.cuda.ExternalStream(handle.value, device)


STREAMS = CudaStreams(make_stream)
