"""Parses large requests and writes large events on threads, so that the event loop never waits.

Small requests stay on the loop, where they take less time than the way to a thread. One thread
takes medium requests and one takes large requests: a medium request waits for no large request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cluster.api.requests import Event
from engine.errors import Overloaded
from tandem_client.events import Tokens

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Event)

# Bounds: the largest request that is small, and the largest that is medium.
SMALL_BYTES = 16 * 1024
MEDIUM_BYTES = 256 * 1024
# Bounds: requests that wait for a thread, 16 and 64 MiB of them.
MOST_MEDIUM = 64
MOST_LARGE = 16
_RETRY_S = 1.0
# Bound: tokens with log-probabilities in an event that is written on the loop.
_FEW_SAMPLED = 64


class _ParsingThread:
    """One thread with a bounded queue."""

    def __init__(self, name: str, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._inside = 0

    async def run(self, work: Callable[[], _T]) -> _T:
        """The result of `work`; raises Overloaded where too many wait."""
        if self._inside > self._most_waiting:
            message = f"{self._most_waiting} large requests wait to be parsed, the most there may"
            raise Overloaded(message, retry_after_s=_RETRY_S)
        self._inside += 1
        # The thread's queue still has a call that was cancelled, but no longer its request.
        waiting = [work]
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: waiting.pop()()
            )
        finally:
            waiting.clear()
            self._inside -= 1


_MEDIUM = _ParsingThread("parser-medium", MOST_MEDIUM)
_LARGE = _ParsingThread("parser-large", MOST_LARGE)


async def off_loop(size_bytes: int, work: Callable[[], _T]) -> _T:
    """The result of `work` on a request of that size; raises what it raises, or Overloaded."""
    if size_bytes <= SMALL_BYTES:
        return work()
    return await (_MEDIUM if size_bytes <= MEDIUM_BYTES else _LARGE).run(work)


async def write_event(event: _E, write: Callable[[_E], _T]) -> _T:
    """What `write` makes of the event, on a thread where it has many log-probabilities."""
    if isinstance(event, Tokens) and len(event.sampled) > _FEW_SAMPLED:
        return await asyncio.to_thread(write, event)
    return write(event)
