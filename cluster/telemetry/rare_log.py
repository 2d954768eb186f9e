"""A warning that strangers can cause: few lines, each with a count of the events."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping


class RareLog:
    """Logs one kind of event at most once in `every_s` seconds; `clock` is monotonic."""

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
        self._unlogged = 0

    def note(self, events: int, fields: Mapping[str, object] | None = None) -> None:
        """Count events; a line has the `count` since the line before, and `fields`."""
        self._unlogged += events
        now = self._clock()
        if now - self._logged_s < self._every_s or not self._unlogged:
            return
        self._log.warning(self._message, extra={"count": self._unlogged, **(fields or {})})
        self._logged_s, self._unlogged = now, 0
