"""Sends a load at its own times, whatever the server does, and notes the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.load.arrivals import Load
from bench.load.client import Target, send_request
from bench.load.http_recording import BadAnswer, RecordedAnswer

TOO_MANY = 429
# Shows how much is done, for a load its seconds, and what is under way, in words.
Show = Callable[[float, str], None]
_LEAD_S = 0.1


@dataclass(frozen=True, slots=True)
class Rules:
    """The deadline of an answer, and how often a refused request comes back at its retry time.

    A request whose retry time is later than `longest_wait_s` gives up.
    """

    deadline_s: float = 120.0
    returns: int = 0
    longest_wait_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Try:
    """One try of a request; times are seconds of `time.perf_counter`.

    `number` counts a request's tries from 0; `error` is why it was interrupted.
    """

    index: int
    number: int
    due: float
    ended: float
    answer: RecordedAnswer | None
    error: str | None


@dataclass(slots=True)
class LoadProgress:
    """The numbers of requests that were sent, came back after a refusal, and ended; to be shown."""

    total: int
    sent: int = 0
    returned: int = 0
    ended: int = 0

    @property
    def in_flight(self) -> int:
        """Tries that were sent and have not ended."""
        return self.sent + self.returned - self.ended

    def __str__(self) -> str:
        return f"{self.sent} of {self.total} sent, {self.in_flight} in flight"


@dataclass(slots=True)
class OpenLoop:
    """One run of a load, from `zero` on; `requests` has the bytes of each arrival."""

    target: Target
    load: Load
    requests: Sequence[bytes]
    rules: Rules
    progress: LoadProgress
    zero: float = 0.0
    tries: list[Try] = field(default_factory=list)

    async def run(self) -> list[Try]:
        """Send all requests and wait for all answers, within the times of the rules."""
        self.zero = time.perf_counter() + _LEAD_S
        async with asyncio.TaskGroup() as tasks:
            for index, arrival in enumerate(self.load.arrivals):
                due = self.zero + arrival.at_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.create_task(self._request(index, due))
        return self.tries

    async def _request(self, index: int, due: float) -> None:
        """Send one request, and again after a refusal if the rules say so."""
        for number in range(1 + self.rules.returns):
            tried = await self._try(index, number, due)
            wait_s = _told_to_wait(tried)
            if wait_s is None or wait_s > self.rules.longest_wait_s:
                return
            due = tried.ended + wait_s
            if number < self.rules.returns:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def _try(self, index: int, number: int, due: float) -> Try:
        answer, error = None, None
        if number:
            self.progress.returned += 1
        else:
            self.progress.sent += 1
        try:
            answer = await send_request(self.target, self.requests[index], self.rules.deadline_s)
        except TimeoutError:
            error = f"no end within {self.rules.deadline_s:g} s"
        except OSError as failure:
            error = f"{type(failure).__name__}: {failure}"
        self.progress.ended += 1
        tried = Try(index, number, due, time.perf_counter(), answer, error)
        self.tries.append(tried)
        return tried


async def show(loop: OpenLoop, write: Show, every_s: float) -> None:
    """Show the progress until cancelled."""
    while True:
        passed_s = max(0.0, time.perf_counter() - loop.zero) if loop.zero else 0.0
        write(min(passed_s, loop.load.seconds), str(loop.progress))
        await asyncio.sleep(every_s)


def _told_to_wait(tried: Try) -> float | None:
    """The retry time of a refusal; None if the try was not refused."""
    try:
        refused = tried.answer is not None and tried.answer.status() == TOO_MANY
    except BadAnswer:
        return None
    return tried.answer.retry_after_s() if refused and tried.answer is not None else None
