"""Staging buffers: all that a data lane ever touches; pool blocks are copied to and from them.

A buffer goes pool → link → lane or copy thread → link → pool. What a thread still holds when its
link ends is quarantined until that thread is done with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from kv_transfer.errors import LinkBroken
from kv_transfer.segments import shared_tensor


class Buffer:
    """One reused piece of memory and the calls on threads that may touch it."""

    __slots__ = ("data", "jobs")

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data
        self.jobs: list[asyncio.Future[Any]] = []

    def used_by(self, job: asyncio.Future[Any]) -> None:
        """Remember that this call touches the buffer until it is done."""
        self.jobs = [*self.pending(), job]

    def pending(self) -> list[asyncio.Future[Any]]:
        """The calls that may still touch it."""
        return [job for job in self.jobs if not job.done()]


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
        self._free: dict[torch.device, list[Buffer]] = {}
        self.taken = 0
        self.quarantined = 0

    def take(self, device: torch.device) -> Buffer:
        """A free buffer on that device, else a new one; LinkBroken at the limit."""
        if self.taken >= self._limit:
            raise LinkBroken(
                f"{self.taken} staging buffers in use, {self.quarantined} of them quarantined"
            )
        free = self._free.setdefault(device, [])
        buffer = free.pop() if free else self._make(device)
        self.taken += 1
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Take the buffer back as soon as no thread touches it any more."""
        pending = buffer.pending()
        if pending:
            self.quarantined += 1
            pending[0].add_done_callback(lambda _: self._release(buffer))
            return
        self._free.setdefault(buffer.data.device, []).append(buffer)
        self.taken -= 1

    def _release(self, buffer: Buffer) -> None:
        self.quarantined -= 1
        self.give(buffer)

    def _make(self, device: torch.device) -> Buffer:
        on_cpu = device.type == "cpu"
        if self._shared and on_cpu:
            return Buffer(shared_tensor(self._bytes))
        pinned = self._pinned and on_cpu
        return Buffer(torch.empty(self._bytes, dtype=torch.uint8, device=device, pin_memory=pinned))


class LinkStaging:
    """The few buffers of one link."""

    def __init__(self, pool: StagingPool, count: int, device: torch.device) -> None:
        self._pool = pool
        self._buffers: list[Buffer] = []
        # The one that was used last lies in the cache: it is taken first.
        self._free: list[Buffer] = []
        try:
            for _ in range(count):
                self._buffers.append(pool.take(device))
        except LinkBroken:
            self.close()
            raise
        self._free += self._buffers

    @property
    def free(self) -> int:
        """How many may be taken at once."""
        return len(self._free)

    def take_now(self) -> Buffer | None:
        """A free buffer, if there is one."""
        return self._free.pop() if self._free else None

    def give_back(self, buffer: Buffer) -> None:
        """The buffer may be used again."""
        self._free.append(buffer)

    def close(self) -> None:
        """Return all to the pool, also those lost on the way; no task may use them any more."""
        for buffer in self._buffers:
            self._pool.give(buffer)
        self._buffers = []
