"""Keeping the two threads of a channel on two cores.

When no core is idle, Linux wakes the reader of a pipe on the writer's core. The reader then waits
for the writer to sleep, and both threads share one core. To prevent that, each thread sends the
number of its core with every record. A thread that waits excludes its peer's core, and a thread
that finds itself on its peer's core moves off it. No thread is bound to a core while it works.
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
    """The number of the core that this thread runs on, cut to 16 bits."""
    return int(_libc().sched_getcpu()) & _NUMBERS


@contextmanager
def not_on(core: int) -> Iterator[None]:
    """Keep this thread off that core inside the block, if it may use another core.

    If the system forbids the change, the thread stays and only loses speed.
    """
    allowed = _cores()
    others = allowed - {core}
    if others and others != allowed:
        _bind(others)
        try:
            yield
        finally:
            # Unless other code has bound the thread meanwhile.
            if _cores() == others:
                _bind(allowed)
    else:
        yield


def keep_off(core: int) -> int:
    """Move this thread off that core if it runs there; returns its core."""
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
