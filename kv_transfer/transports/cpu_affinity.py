"""Two threads that work for each other, kept on two cores.

Linux wakes the reader of a pipe on the writer's core when it finds no idle one, and there it waits
for the writer to rest: both threads then take turns on one core. Each says with its records where
it runs, or ran when it last heard. Who waits for the other is not woken there, and who hears of its
own core moves off it; no thread is bound to a core while it works.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

_NUMBERS = 0xFFFF


def own_core() -> int:
    """The number of the core that this thread runs on, in 16 bits."""
    return int(_libc().sched_getcpu()) & _NUMBERS


@contextmanager
def not_on(core: int) -> Iterator[None]:
    """Inside, this thread runs on another of the cores that it may use, if there is one.

    Where the system forbids that it stays: it is slower there, and nothing else.
    """
    allowed = _cores()
    others = allowed - {core}
    if others and others != allowed:
        _bind(others)
        try:
            yield
        finally:
            # Unless somebody else has bound it meanwhile.
            if _cores() == others:
                _bind(allowed)
    else:
        yield


def keep_off(core: int) -> int:
    """Move this thread off that core, if it runs there; where it is now."""
    own = own_core()
    if own != core:
        return own
    with not_on(core):
        return own_core()


def _cores() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except OSError:
        return set()


def _bind(cores: set[int]) -> None:
    with suppress(OSError):
        os.sched_setaffinity(0, cores)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
