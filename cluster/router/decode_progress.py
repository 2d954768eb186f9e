"""Progress events for an answer whose text is kept to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.api import Progress, Scored, Tokens

EVERY_S = 0.5


class DecodeProgress:
    """Passes a choice's events on, and adds its progress of `most` tokens twice a second."""

    def __init__(
        self,
        put: Callable[[Scored | Tokens | Progress], None],
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put = put
        self._most = most
        self._clock = clock
        self._last_s = float("-inf")

    def __call__(self, event: Scored | Tokens | Progress) -> None:
        """Take the next event."""
        self._put(event)
        if not isinstance(event, Tokens) or event.finish_reason is not None:
            return
        now = self._clock()
        if now - self._last_s >= EVERY_S:
            self._last_s = now
            done = event.index + len(event.ids)
            self._put(Progress(event.choice, "decode", done, self._most))
