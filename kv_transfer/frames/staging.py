"""Staging buffers: the only memory that a data channel touches. Blocks are copied to and from them.

A buffer goes pool → link → channel thread → link → pool. When a link ends, the buffers that its
thread still uses are quarantined until the thread gives them back.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import torch

from engine.kv.shared_segments import shared_tensor
from kv_transfer.errors import LinkBroken


class StagingPool:
    """The buffers of one side of a replica, at most `limit`, each allocated at its first use.

    Buffers in host memory can be pinned, or shared so that another process can read them.
    """

    def __init__(
        self, buffer_bytes: int, limit: int, *, pinned: bool = False, shared: bool = False
    ) -> None:
        self._bytes = buffer_bytes
        self._limit = limit
        self._pinned = pinned
        self._shared = shared
        self._free: dict[torch.device, list[torch.Tensor]] = {}
        self.taken = 0
        self.quarantined = 0

    def take(self, device: torch.device) -> torch.Tensor:
        """A free buffer on that device, or a new one; LinkBroken at the limit."""
        if self.taken >= self._limit:
            raise LinkBroken(
                f"{self.taken} staging buffers in use, {self.quarantined} of them quarantined"
            )
        free = self._free.setdefault(device, [])
        buffer = free.pop() if free else self._make(device)
        self.taken += 1
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        """Take back a buffer that no thread uses any more."""
        self._free.setdefault(buffer.device, []).append(buffer)
        self.taken -= 1

    def release(self, buffer: torch.Tensor) -> None:
        """Take back a buffer from quarantine."""
        self.quarantined -= 1
        self.give(buffer)

    def _make(self, device: torch.device) -> torch.Tensor:
        on_cpu = device.type == "cpu"
        if self._shared and on_cpu:
            return shared_tensor(self._bytes)
        pinned = self._pinned and on_cpu
        return torch.empty(self._bytes, dtype=torch.uint8, device=device, pin_memory=pinned)


class LinkStaging:
    """The buffers of one link; any thread may take them and give them back."""

    def __init__(self, pool: StagingPool, count: int, device: torch.device) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._out = 0
        # The last buffer used is still in the processor's cache, so it is taken first.
        self._free: list[torch.Tensor] = []
        try:
            for _ in range(count):
                self._free.append(pool.take(device))
        except Exception:  # LinkBroken, or no memory or descriptor is left
            self.close()
            raise

    def take(self) -> torch.Tensor:
        """A free buffer; LinkBroken if none is free or the link is over."""
        with self._lock:
            if self._closed or not self._free:
                raise LinkBroken("the link has no staging buffer")
            self._out += 1
            return self._free.pop()

    def give_back(self, buffer: torch.Tensor) -> None:
        """Return a buffer that its taker does not use any more."""
        with self._lock:
            self._out -= 1
            if not self._closed:
                self._free.append(buffer)
                return
        # If the event loop is closed, the pool is gone too.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pool.release, buffer)

    def close(self) -> None:
        """Return all buffers to the pool; a buffer in use follows when its thread gives it back."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
            self._pool.quarantined += self._out
        for buffer in free:
            self._pool.give(buffer)
