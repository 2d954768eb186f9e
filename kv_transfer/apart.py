"""Two threads that work for each other, kept on two cores.

Linux wakes the reader of a pipe on the writer's core when it finds no idle one, and there it stays:
both threads then take turns on one core. Each says with its records where it runs, and who hears of
its own core moves off it, once; no thread is bound to a core afterwards.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from typing import Any

_NUMBERS = 0xFFFF


def own_core() -> int:
    """The number of the core that this thread runs on, in 16 bits."""
    return int(_libc().sched_getcpu()) & _NUMBERS


def keep_off(core: int) -> int:
    """Move this thread to another of the cores that it may use, if it runs on that one.

    Where the system forbids that it stays: it is slower there, and nothing else. Where it is now.
    """
    own = own_core()
    if own != core:
        return own
    allowed = os.sched_getaffinity(0)
    if others := allowed - {core}:
        with suppress(OSError):
            os.sched_setaffinity(0, others)
            os.sched_setaffinity(0, allowed)
    return own_core()


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
