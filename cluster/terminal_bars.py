"""Bars of long work in a terminal, each on one line however narrow the terminal is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

# Layout, in columns of a terminal.
_BAR = 12
_NAME = 24
# The terminal shows `^C` there. On a line of its own it would stay, and the bar above it.
_SPARE = 2
# A clock of seconds needs no more, and each drawing takes time from what is measured.
_DRAWN_PER_S = 1.0


def terminal_bars(out: TextIO, *, transient: bool, clocked: bool) -> Progress:
    """Bars of tasks with a field `words`: a function that returns what stands behind the bar.

    With `clocked` they are drawn each second, without it by `refresh`. What the process prints in
    the meantime stands above the bars; what it prints into a file goes there.
    """
    return _Bars(
        TextColumn("{task.description}", markup=False, table_column=_column(max_width=_NAME)),
        BarColumn(bar_width=_BAR, table_column=_column(width=_BAR)),
        _Words(table_column=_column(ratio=1)),
        console=Console(file=out),
        auto_refresh=clocked,
        refresh_per_second=_DRAWN_PER_S,
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
        expand=True,
    )


class _Bars(Progress):
    def get_renderables(self) -> Iterable[RenderableType]:
        """See Progress."""
        yield _Narrower(self.make_tasks_table(self.tasks))


@dataclass(frozen=True, slots=True)
class _Narrower:
    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - _SPARE)
        yield from console.render(self.shown, options.update_width(width))


class _Words(ProgressColumn):
    def render(self, task: Task) -> Text:
        """See ProgressColumn."""
        return Text(task.fields["words"]())


def _column(
    width: int | None = None, max_width: int | None = None, ratio: int | None = None
) -> Column:
    """A column that cuts what is too long, and never breaks a line."""
    return Column(width=width, max_width=max_width, ratio=ratio, no_wrap=True, overflow="ellipsis")
