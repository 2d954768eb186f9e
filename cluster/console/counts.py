"""What the console counts of requests, and a log of it for the consoles of other routers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Literal

from cluster.console.link_rates import LinkRates
from cluster.console.rise.lengths import TextLength
from cluster.console.time_series import TimeSeries
from cluster.console.ttft_sample import TtftSample

# Bounds: first tokens, and answers, that explain a rise; counts that are held for other routers.
_MOST_SAMPLES = 10_000
_MOST_LOGGED = 40_000

EndedCount = tuple[float, str, float | None, float, bool]
ItlCount = tuple[float, str, tuple[float, ...], float]
RefusedCount = tuple[float, str, str]
ServedCount = tuple[float, str, int]
TenantRefusedCount = tuple[float, str]
MovedCount = tuple[str, str, int]
Logged = (
    tuple[Literal["first_tokens"], TtftSample]
    | tuple[Literal["answers"], TextLength]
    | tuple[Literal["ended"], EndedCount]
    | tuple[Literal["itl"], ItlCount]
    | tuple[Literal["refused"], RefusedCount]
    | tuple[Literal["served"], ServedCount]
    | tuple[Literal["tenant_refused"], TenantRefusedCount]
    | tuple[Literal["moved"], MovedCount]
)


class Counts:
    """The charts, the first tokens to explain, the lengths of answers, the rates of KV links."""

    def __init__(self) -> None:
        self.series = TimeSeries()
        self.samples: deque[TtftSample] = deque(maxlen=_MOST_SAMPLES)
        self.answers: deque[TextLength] = deque(maxlen=_MOST_SAMPLES)
        self.links = LinkRates()


class CountLog:
    """What was counted, with a number for each count; the oldest leave first."""

    def __init__(self, most: int = _MOST_LOGGED) -> None:
        self._held: deque[Logged] = deque(maxlen=most)
        self.last = 0

    def add(self, one: Logged) -> None:
        """Hold a count."""
        self._held.append(one)
        self.last += 1

    def after(self, number: int, most: int) -> tuple[list[Logged], int]:
        """At most so many counts behind that number, and the number of the last of these."""
        before = self.last - len(self._held)
        begin = min(max(number, before), self.last)
        found = list(islice(self._held, begin - before, begin - before + most))
        return found, begin + len(found)


class LoggedCounts(Counts):
    """Holds no charts: each count goes to the log, a transfer only with `flush`."""

    def __init__(self, log: CountLog) -> None:
        super().__init__()
        self._log = log
        self._moved: list[MovedCount] = []
        self.series = _SeriesLog(log)
        self.samples = _SampleLog(log)
        self.answers = _AnswerLog(log)
        self.links = _LinkLog(self._moved)

    def flush(self) -> None:
        """Log the transfers that were counted and not forgotten."""
        for one in self._moved:
            self._log.add(("moved", one))
        self._moved.clear()


class _SeriesLog(TimeSeries):
    def __init__(self, log: CountLog) -> None:
        super().__init__()
        self._log = log

    def first_token(self, at: float, endpoint: str, ttft_s: float) -> None:
        """The sample is logged in its place."""

    def itl(self, at: float, endpoint: str, values: Sequence[float], longest_s: float) -> None:
        self._log.add(("itl", (at, endpoint, tuple(values), longest_s)))

    def ended(
        self, at: float, endpoint: str, itl_s: float | None, longest_s: float, *, failed: bool
    ) -> None:
        self._log.add(("ended", (at, endpoint, itl_s, longest_s, failed)))

    def refused(self, at: float, endpoint: str, reason: str) -> None:
        self._log.add(("refused", (at, endpoint, reason)))

    def served(self, at: float, tenant: str, tokens: int) -> None:
        self._log.add(("served", (at, tenant, tokens)))

    def tenant_refused(self, at: float, tenant: str) -> None:
        self._log.add(("tenant_refused", (at, tenant)))


class _SampleLog(deque[TtftSample]):
    def __init__(self, log: CountLog) -> None:
        super().__init__(maxlen=0)
        self._log = log

    def append(self, one: TtftSample) -> None:
        self._log.add(("first_tokens", one))


class _AnswerLog(deque[TextLength]):
    def __init__(self, log: CountLog) -> None:
        super().__init__(maxlen=0)
        self._log = log

    def append(self, one: TextLength) -> None:
        self._log.add(("answers", one))


class _LinkLog(LinkRates):
    def __init__(self, held: list[MovedCount]) -> None:
        super().__init__()
        self._held = held

    def moved(self, now: float, sender: str, receiver: str, size: int) -> None:
        self._held.append((sender, receiver, size))

    def forget(self) -> None:
        self._held.clear()
