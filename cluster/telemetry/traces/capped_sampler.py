"""Which requests are traced: as the client's trace says, otherwise a share; so many a second."""

from __future__ import annotations

import time
from collections.abc import Callable

# As in OpenTelemetry's TraceIdRatioBased, so that all processes choose the same traces.
_COUNTED = 1 << 64


class CappedSampler:
    """Chooses at most `most_per_s` traces a second, with a burst of as many.

    `clock` is in seconds.
    """

    def __init__(
        self, share: float, most_per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._below = round(share * _COUNTED)
        self._most_per_s = most_per_s
        self._burst = max(1.0, most_per_s)
        self._clock = clock
        self._left = self._burst
        self._at_s = clock()

    def chooses(self, trace_id: int, *, parent: bool | None) -> bool:
        """Whether a request is traced; `parent` is what its client's trace says, if it has one."""
        wanted = trace_id % _COUNTED < self._below if parent is None else parent
        return wanted and self._take()

    def _take(self) -> bool:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at_s) * self._most_per_s)
        self._at_s = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
