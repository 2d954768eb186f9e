"""A warning that strangers can cause: few lines, each with counts of the events."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress


class RareLog:
    """Logs the first event at once, and later events together, at most one line in `every_s` s.

    `clock` is monotonic. A timer of the running event loop logs the later events. Where no loop
    runs, the first event after that time does.
    """

    def __init__(
        self,
        log: logging.Logger,
        message: str,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._message = message
        self._every_s = every_s
        self._clock = clock
        self._logged_s = -math.inf
        self._unlogged: Counter[str] = Counter()
        self._fields: Mapping[str, object] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(
        self, fields: Mapping[str, object] | None = None, *, kind: str = "count", events: int = 1
    ) -> None:
        """Count events of a kind. A line has the counts since the line before, by kind.

        It also has the `fields` of the last event.
        """
        if events:
            self._unlogged[kind] += events
            self._fields = fields or {}
        wait_s = self._logged_s + self._every_s - self._clock()
        if wait_s <= 0:
            self.close()
        elif self._unlogged and self._timer is None:
            with suppress(RuntimeError):  # no loop runs
                self._timer = asyncio.get_running_loop().call_later(wait_s, self.close)

    def close(self) -> None:
        """Log what is left. Idempotent; more events may follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unlogged:
            self._log.warning(self._message, extra={**self._unlogged, **self._fields})
            self._unlogged.clear()
            self._logged_s = self._clock()
