"""The progress of long work: a bar in a terminal, and a line now and then where it is piped."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

# Bound: how often a pipe gets a line, unless the note changes.
_EVERY_S = 10.0


def redraws(out: TextIO) -> bool:
    """Whether it is a terminal that can show one place anew; a dumb one is as a pipe."""
    return out.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


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
        self._shown_s: float | None = None
        self._note: str | None = None
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

    def at(self, done: float, note: str = "") -> None:
        """Show that so much of the total is done. A pipe gets a line when it is time for one."""
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=done, note=note)
            return
        now = self._clock()
        news = self._total is None and note != self._note
        if self._shown_s is None or news or now - self._shown_s >= _EVERY_S:
            self._shown_s, self._note = now, note
            print(self._line(done, note, now), file=self._out, flush=True)

    def _line(self, done: float, note: str, now: float) -> str:
        parts = [f"{now - self._began_s:.0f} s"]
        if self._total:
            parts = [f"{done:g} of {self._total:g}", *parts]
            if 0 < done < self._total:
                left_s = (now - self._began_s) * (self._total - done) / done
                parts.append(f"about {left_s:.0f} s to go")
        return f"{self._what}: {', '.join([*parts, *([note] if note else [])])}"


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
