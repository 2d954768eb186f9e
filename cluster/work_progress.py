"""The progress of long work: a bar in a terminal, and a line now and then where it is piped."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO, TypeVar

from cluster.display_text import long_time

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

# Bounds: how often a pipe gets a line without news, and with news.
_EVERY_S = 10.0
_NEWS_S = 1.0
# A rate over less time is a guess.
_LEAST_S = 3.0
# Numerics: how long a rate looks back, and how many looks it keeps of that time.
_WINDOW_S, _LOOKS = 600.0, 100
T = TypeVar("T")


def redraws(out: TextIO) -> bool:
    """Whether it is a terminal that can show one place anew; a dumb one is as a pipe."""
    return out.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


class WorkRate:
    """How fast work goes, from looks at how much is done, over the last `window_s` seconds."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._looks: deque[tuple[float, float]] = deque()

    def look(self, done: float, now_s: float) -> None:
        """Note that so much is done; the first look is the begin of the work."""
        looks = self._looks
        if looks and looks[-1][1] == done:
            return
        if len(looks) > 1 and now_s - looks[-2][0] < self._window_s / _LOOKS:
            looks.pop()
        looks.append((now_s, done))
        while len(looks) > 2 and looks[1][0] <= now_s - self._window_s:
            looks.popleft()

    def rate(self, now_s: float) -> float | None:
        """What is done a second; None in the first seconds, and where nothing gets done.

        It is the mean while the piece under way, which counts as 1, takes no longer than the pieces
        before. It sinks when that piece takes longer.
        """
        if not self._looks:
            return None
        (since_s, before), (looked_s, done) = self._looks[0], self._looks[-1]
        is_guess = now_s - since_s < _LEAST_S
        if is_guess or done <= before or now_s - looked_s > self._window_s:
            return None
        return min(self._mean, (done - before + 1) / (now_s - since_s))

    def left_s(self, total: float, now_s: float) -> float | None:
        """The seconds until `total` is done; None where the rate is not known.

        It falls as time passes. While the piece under way takes longer than the pieces before, it
        rises.
        """
        rate = self.rate(now_s)
        if rate is None:
            return None
        looked_s, done = self._looks[-1]
        left = total - done
        return max(left / self._mean - (now_s - looked_s), (left - 1) / rate, 0.0)

    @property
    def _mean(self) -> float:
        (since_s, before), (looked_s, done) = self._looks[0], self._looks[-1]
        return (done - before) / (looked_s - since_s) if looked_s > since_s else math.inf


class LineLimit:
    """When a pipe gets a line: on news, and now and then."""

    def __init__(self) -> None:
        self.shown_s: float | None = None
        self._news: str | None = None

    def due(self, news: str, now_s: float) -> bool:
        """Whether to write a line now, which has these news; True says that it is written."""
        if self.shown_s is not None:
            since_s = now_s - self.shown_s
            if since_s < (_NEWS_S if news != self._news else _EVERY_S):
                return False
        self.shown_s, self._news = now_s, news
        return True


class WorkProgress:
    """Shows how far `what` is, with the time left where `total` is known.

    `unit` is what the total counts; the unit `s` is of work that lasts so many seconds. Use it as a
    context. A terminal keeps the line of a work with a total that ended well, and no other line.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        unit: str = "",
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._began_s = clock()
        self._limit = LineLimit()
        self._work_rate = WorkRate()
        self._done, self._note = 0.0, ""
        self._bar: tuple[Bar, TaskID] | None = None

    def __enter__(self) -> Self:
        self._began_s = self._clock()
        if redraws(self._out):
            from cluster.terminal_bars import terminal_bars

            bar = terminal_bars(self._out, transient=False, clocked=True)
            self._bar = bar, bar.add_task(self._what, total=self._total, words=self._words)
            bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is None:
            return
        if kind is None and self._total is not None:
            self.at(self._total, self._note)
        else:
            self._bar[0].live.transient = True
        self._bar[0].stop()

    def at(self, done: float, note: str = "", detail: str = "") -> None:
        """Show that so much of the total is done. A pipe gets a line when it is time for one.

        Without a total another note is news, and another detail is none.
        """
        now = self._clock()
        self._work_rate.look(done, now)
        self._done, self._note = done, ", ".join(part for part in (note, detail) if part)
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=done)
        elif self._limit.due(note if self._total is None else "", now):
            print(f"{self._what}: {self._words()}", file=self._out, flush=True)

    def _words(self) -> str:
        now = self._clock()
        parts = [] if self._unit == "s" else [long_time(now - self._began_s)]
        if self._total:
            counts = f"{self._done:,.0f} of {self._total:,.0f} {self._unit}"
            parts.insert(0, counts.rstrip())
            left_s = self._work_rate.left_s(self._total, now)
            if left_s is not None and left_s >= 1:
                parts.append(f"about {long_time(left_s)} left")
        return ", ".join([*parts, *([self._note] if self._note else [])])


def tracked(what: str, items: Sequence[T], name: Callable[[T], str] = lambda _: "") -> Iterator[T]:
    """The items, one by one, while stderr shows how many are done, and the `name` of the next."""
    with WorkProgress(what, len(items)) as progress:
        for done, item in enumerate(items):
            progress.at(done, name(item))
            yield item
        progress.at(len(items))
