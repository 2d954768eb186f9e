"""Staging buffers: all that a data channel ever touches; pool blocks are copied to and from them.

A buffer goes pool → link → channel thread → link → pool. What a thread still holds when its link
ends is quarantined until that thread is done with it.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import torch

from engine.kv.shared_segments import shared_tensor
from kv_transfer.errors import LinkBroken


class StagingPool:
    """The buffers of one replica side, made when first needed, at most `limit`.

    Those in host memory are pinned, or such that another process can read them, if asked for.
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
        """A free buffer on that device, else a new one; LinkBroken at the limit."""
        if self.taken >= self._limit:
            raise LinkBroken(
                f"{self.taken} staging buffers in use, {self.quarantined} of them quarantined"
            )
        free = self._free.setdefault(device, [])
        buffer = free.pop() if free else self._make(device)
        self.taken += 1
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        """Take the buffer back: no thread touches it any more."""
        self._free.setdefault(buffer.device, []).append(buffer)
        self.taken -= 1

    def release(self, buffer: torch.Tensor) -> None:
        """Take back a buffer that was quarantined."""
        self.quarantined -= 1
        self.give(buffer)

    def _make(self, device: torch.device) -> torch.Tensor:
        on_cpu = device.type == "cpu"
        if self._shared and on_cpu:
            return shared_tensor(self._bytes)
        pinned = self._pinned and on_cpu
        return torch.empty(self._bytes, dtype=torch.uint8, device=device, pin_memory=pinned)


class LinkStaging:
    """The few buffers of one link; taken and given back on any thread."""

    def __init__(self, pool: StagingPool, count: int, device: torch.device) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._out = 0
        # The one that was used last lies in the cache: it is taken first.
        self._free: list[torch.Tensor] = []
        try:
            for _ in range(count):
                self._free.append(pool.take(device))
        except Exception:  # also where there is no memory or file for another
            self.close()
            raise

    def take(self) -> torch.Tensor:
        """A free buffer; LinkBroken if there is none, or the link is over."""
        with self._lock:
            if self._closed or not self._free:
                raise LinkBroken("the link has no staging buffer")
            self._out += 1
            return self._free.pop()

    def give_back(self, buffer: torch.Tensor) -> None:
        """Nobody touches the buffer any more."""
        with self._lock:
            self._out -= 1
            if not self._closed:
                self._free.append(buffer)
                return
        # An event loop that is gone took the pool with it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pool.release, buffer)

    def close(self) -> None:
        """Return all to the pool, those that a thread holds when it gives them back."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
            self._pool.quarantined += self._out
        for buffer in free:
            self._pool.give(buffer)
