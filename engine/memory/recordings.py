"""The memory of recorded steps, from a trial of two."""

from __future__ import annotations

from collections.abc import Iterator

from engine.memory.device_memory import DeviceMemory


def recordings_bytes(pieces: Iterator[None], count: int, memory: DeviceMemory) -> int:
    """The bytes of `count` recordings, of which `pieces` makes the largest and the smallest.

    All recordings share the memory of the largest one. Each has besides what the driver keeps for
    it, which the smallest one shows.
    """
    before = memory.used()
    next(pieces)
    largest = max(0, memory.used() - before)
    next(pieces)
    smallest = max(0, memory.used() - before - largest)
    return largest + (count - 1) * smallest
