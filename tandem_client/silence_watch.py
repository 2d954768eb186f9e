"""Ends calls whose router is silent: it is frozen, or the network lost it without a sign.

A call that waits for an event is watched. After `QUIET_S` the router is asked for its health over
the same connection, once for all of its calls. A router that does not answer within `ANSWER_S` is
silent. Time is counted in ticks, so that a client that stood still blames no router.

A call that could not go on elsewhere is left to its router for SILENCE_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tandem_client.errors import Unavailable

QUIET_S = 1.5
ANSWER_S = 1.5
# Bound: a silence of a router that answers. It sends a heartbeat after 10 s without an event.
SILENCE_S = 25.0
# Bound: the part of SILENCE_S after which a call without events has its router's health asked.
UNANSWERED_S = 10.0
_TICK_S = 0.25
# Whether a router says anything within so many seconds.
Answers = Callable[[float], Awaitable[bool]]


def silence_of(seconds: float) -> Unavailable:
    """The error of a call whose router was silent for so long."""
    return Unavailable(f"the router was silent for {seconds:g} s")


class WatchedCall:
    """A call that streams. `silence` is the error of the silent router that ended it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._quiet_s = self._limit_s = 0.0
        self._waiting = self._patient = False
        self.silence: Unavailable | None = None

    async def read(self, limit_s: float, *, patient: bool) -> Any:
        """The next message; raises CancelledError after a silence.

        A router that answers may be silent for `limit_s`, and one that is called `patient`ly, too.
        """
        self._quiet_s, self._limit_s, self._waiting, self._patient = 0.0, limit_s, True, patient
        try:
            return await self._call.read()
        finally:
            self._waiting = False

    @property
    def is_quiet(self) -> bool:
        """Whether it has waited for an event for a while, and the router is to be asked."""
        return self._waiting and not self._patient and self._quiet_s >= QUIET_S

    def tick(self) -> None:
        """Count a tick; ends the call at its limit."""
        self._quiet_s += _TICK_S
        if self._waiting and self._quiet_s >= self._limit_s:
            self.end(self._limit_s)

    def end(self, silent_s: float) -> None:
        """End the call, because its router was silent for so long."""
        self.silence = silence_of(silent_s)
        self._call.cancel()


class SilenceWatch:
    """Watches the calls to one router. `on_silence` is called when it did not answer."""

    def __init__(self, answers: Answers, on_silence: Callable[[], None]) -> None:
        self._answers = answers
        self._on_silence = on_silence
        self._calls: set[WatchedCall] = set()
        self._watching: asyncio.Task[None] | None = None

    @contextmanager
    def over(self, call: Any) -> Iterator[WatchedCall]:
        """Watch a call, and cancel it behind the block."""
        watched = WatchedCall(call)
        self._calls.add(watched)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            yield watched
        finally:
            self._calls.discard(watched)
            call.cancel()

    async def answer(self, call: Any) -> Any:
        """The answer of a call that does not stream and has no deadline.

        Raises Unavailable where the router says nothing for SILENCE_S, not even about its health.
        """
        waiting = asyncio.ensure_future(_awaited(call))
        try:
            while not (await asyncio.wait([waiting], timeout=UNANSWERED_S))[0]:
                if not await self._answers(SILENCE_S - UNANSWERED_S) and not waiting.done():
                    self._on_silence()
                    raise silence_of(SILENCE_S)
            return waiting.result()
        finally:
            waiting.cancel()
            call.cancel()

    def close(self) -> None:
        """Watch no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        """Tick while there are calls."""
        rest_s = 0.0
        try:
            while self._calls:
                await asyncio.sleep(_TICK_S)
                for one in tuple(self._calls):
                    one.tick()
                rest_s -= _TICK_S
                quiet = [one for one in self._calls if one.is_quiet]
                if quiet and rest_s <= 0:
                    await self._ask(quiet)
                    rest_s = QUIET_S
        finally:
            self._watching = None

    async def _ask(self, quiet: list[WatchedCall]) -> None:
        """Ask the router for its health, and end these calls where it is silent."""
        if await self._answers(ANSWER_S):
            return
        self._on_silence()
        for one in quiet:
            if one.is_quiet:
                one.end(QUIET_S + ANSWER_S)


async def _awaited(call: Any) -> Any:
    return await call
