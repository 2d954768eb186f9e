"""The progress of long work: a bar in a terminal, and a line now and then where it is piped."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO, TypeVar

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
        if len(looks) > 1 and now_s - looks[-2][0] < self._window_s / _LOOKS:
            looks.pop()
        looks.append((now_s, done))
        while len(looks) > 2 and looks[1][0] <= now_s - self._window_s:
            looks.popleft()

    @property
    def rate(self) -> float | None:
        """What is done a second; None in the first seconds, and where nothing gets done."""
        if not self._looks:
            return None
        (since_s, before), (now_s, done) = self._looks[0], self._looks[-1]
        if now_s - since_s < _LEAST_S or done <= before:
            return None
        return (done - before) / (now_s - since_s)

    def left_s(self, total: float) -> float | None:
        """The seconds until `total` is done; None where the rate is not known."""
        rate = self.rate
        return None if rate is None else max(0.0, total - self._looks[-1][1]) / rate


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

    Use it as a context. In a terminal the last state stays when it ends.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._began_s = clock()
        self._limit = LineLimit()
        self._work_rate = WorkRate()
        self._bar: tuple[Bar, TaskID] | None = None

    def __enter__(self) -> Self:
        self._began_s = self._clock()
        if redraws(self._out):
            self._bar = _bar(self._what, self._total, self._out)
            self._bar[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def at(self, done: float, note: str = "", detail: str = "") -> None:
        """Show that so much of the total is done. A pipe gets a line when it is time for one.

        Without a total another note is news, and another detail is none.
        """
        said = ", ".join(part for part in (note, detail) if part)
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=done, note=said)
            return
        now = self._clock()
        self._work_rate.look(done, now)
        if self._limit.due(note if self._total is None else "", now):
            print(self._line(done, said, now), file=self._out, flush=True)

    def _line(self, done: float, note: str, now: float) -> str:
        parts = [f"{now - self._began_s:.0f} s"]
        if self._total:
            parts = [f"{done:g} of {self._total:g}", *parts]
            left_s = self._work_rate.left_s(self._total)
            if left_s:
                parts.append(f"about {left_s:.0f} s to go")
        return f"{self._what}: {', '.join([*parts, *([note] if note else [])])}"


def tracked(what: str, items: Sequence[T]) -> Iterator[T]:
    """The items, one by one, while stderr shows how many are done."""
    with WorkProgress(what, len(items)) as progress:
        for done, item in enumerate(items):
            progress.at(done)
            yield item
        progress.at(len(items))


def _bar(what: str, total: float | None, out: TextIO) -> tuple[Bar, TaskID]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()]
    if total is not None:
        columns[2:2] = [MofNCompleteColumn(), TimeRemainingColumn()]
    shown = Bar(
        *columns,
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(file=out),
        refresh_per_second=4,
    )
    return shown, shown.add_task(what, total=total, note="")
