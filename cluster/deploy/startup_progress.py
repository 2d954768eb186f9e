"""The progress of `tandem serve`: each stage once, with its seconds, and what replicas do.

In a terminal the stage under way and the replicas that start have a bar each; a pipe gets lines.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TextIO

from cluster.discovery.starting_replicas import READY, StartingReplica
from cluster.display_text import long_time
from cluster.work_progress import LineLimit, redraws

if TYPE_CHECKING:
    from rich.progress import Progress

_REASON = re.compile(r"^engine\.errors\.(\w+): (.+)$", re.MULTILINE)
_FINAL = ("ConfigError", "InvalidRequest", "UnsupportedModel")
# Bounds: the time between two looks at what replicas say, and lines and bars for one look.
POLL_S = 0.5
_MOST_LINES = 4
_MOST_BARS = 16

Look = Callable[[], Sequence[StartingReplica]]


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """One deployment as Serve reports it."""

    name: str
    wanted: int
    running: int
    status: str
    message: str = ""

    @property
    def complete(self) -> bool:
        """Whether all desired replicas run."""
        return self.running >= self.wanted

    @property
    def failure(self) -> str | None:
        """Why this deployment will not come up, in one line; None while it may."""
        reason = failure_reason(self.message)
        hopeless = self.status == "DEPLOY_FAILED" or is_final(self.message)
        return f"{self.name}: {reason}" if hopeless and reason else None


class StartupProgress:
    """Prints stages with the seconds since the start."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began_s = time.monotonic()
        self._shown: dict[str, int] = {}
        self._look: Look | None = None
        self._looked_s = 0.0
        self._ready_limit = LineLimit()
        self._limits: dict[str, LineLimit] = {}
        self._weights: set[str] = set()
        self._bars: Progress | None = None
        self._up, self._wanted = 0, 0

    def say(self, line: str = "") -> None:
        """Print one line. A closed terminal raises nothing, so that the cluster can still end."""
        with contextlib.suppress(OSError):
            if self._bars is not None:
                self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, file=self._out, flush=True)

    def stage(self, name: str) -> None:
        """Print a finished stage."""
        self.say(f"{time.monotonic() - self._began_s:6.1f} s  {name}")

    @contextlib.contextmanager
    def doing(self, name: str) -> Iterator[None]:
        """Show a stage in a terminal while it is under way; print it once it has ended well."""
        began_s = time.monotonic()
        with self._drawn(clocked=True):
            if self._bars is not None:
                words = partial(_passed, began_s)
                self._bars.add_task(name, total=None, words=words)
            yield
        self.stage(name)

    def replicas(self, states: Mapping[str, DeploymentState]) -> None:
        """Print the deployments whose number of running replicas changed."""
        for name, state in states.items():
            if state.running != self._shown.get(name, 0):
                self._shown[name] = state.running
                self.stage(f"{name} {state.running}/{state.wanted}")
        self._up = sum(state.running for state in states.values())
        self._wanted = sum(state.wanted for state in states.values())
        now = time.monotonic()
        if self._look is not None and now - self._looked_s >= POLL_S:
            self._looked_s = now
            self._show(self._look(), now)

    @contextlib.contextmanager
    def following(self, look: Look) -> Iterator[None]:
        """Show what replicas that start say, by `look`, whenever `replicas` is called inside."""
        self._look = look
        try:
            with self._drawn(clocked=False):
                yield
                self._show(look(), time.monotonic())
        finally:
            self._look = None

    @contextlib.contextmanager
    def _drawn(self, *, clocked: bool) -> Iterator[None]:
        """Bars in a terminal, which vanish."""
        if redraws(self._out):
            from cluster.terminal_bars import terminal_bars

            self._bars = terminal_bars(self._out, transient=True, clocked=clocked)
        try:
            if self._bars is not None:
                self._bars.start()
            yield
        finally:
            bars, self._bars = self._bars, None
            if bars is not None:
                with contextlib.suppress(OSError):
                    bars.stop()

    def _show(self, replicas: Sequence[StartingReplica], now: float) -> None:
        for one in replicas:
            if one.weights and one.id not in self._weights:
                self._weights.add(one.id)
                self.stage(f"{one.id}: {one.weights}")
        starting = [one for one in replicas if one.stage != READY]
        if self._bars is not None:
            with contextlib.suppress(OSError):
                self._redraw(self._bars, starting)
        elif starting:
            self._write_lines(starting, now)
        elif self._up < self._wanted and self._ready_limit.due(self._ready, now):
            self.stage(self._ready)

    @property
    def _ready(self) -> str:
        return f"{self._up} of {self._wanted} ready"

    def _redraw(self, bars: Progress, starting: Sequence[StartingReplica]) -> None:
        """A bar of all replicas and routers, one for each of the first that start, and a rest."""
        for task in bars.task_ids:
            bars.remove_task(task)
        if self._wanted:
            words = partial(str, self._ready)
            bars.add_task("all", total=self._wanted, completed=self._up, words=words)
        for one in starting[:_MOST_BARS]:
            total = one.total or None
            bars.add_task(one.id, total=total, completed=one.done, words=partial(str, one.progress))
        if more := starting[_MOST_BARS:]:
            bars.add_task(f"{len(more)} more", total=None, words=str)
        bars.refresh()

    def _write_lines(self, starting: Sequence[StartingReplica], now: float) -> None:
        """Write a few lines, first of replicas whose last line is longest ago."""
        limits = {one.id: self._limits.get(one.id) or LineLimit() for one in starting}
        self._limits = limits
        written = 0
        for one in sorted(starting, key=lambda each: limits[each.id].shown_s or 0.0):
            if written < _MOST_LINES and limits[one.id].due(one.stage, now):
                written += 1
                self.stage(f"{one.id}: {one.progress}")


def _passed(began_s: float) -> str:
    return long_time(time.monotonic() - began_s)


def failure_reason(message: str) -> str | None:
    """The error in a deployment's status message, without its traceback."""
    if found := _REASON.findall(message):
        return str(found[-1][1])
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else None


def is_final(message: str) -> bool:
    """Whether another try would end in the same error."""
    return any(name in _FINAL for name, _ in _REASON.findall(message))
