"""Which requests are traced: as the client's trace says, otherwise a share; so many a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import (
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes


class CappedSampler(Sampler):
    """Begins at most `most_per_s` traces a second, with a burst of as many; drops the others.

    `clock` is in seconds.
    """

    def __init__(
        self, share: float, most_per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._chosen = ParentBased(TraceIdRatioBased(share))
        self._most_per_s = most_per_s
        self._burst = max(1.0, most_per_s)
        self._clock = clock
        self._left = self._burst
        self._at_s = clock()

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """As OpenTelemetry's samplers."""
        result = self._chosen.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )
        if result.decision is Decision.DROP or self._take():
            return result
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        """Its name in OpenTelemetry's logs."""
        return f"CappedSampler({self._most_per_s:g}/s)"

    def _take(self) -> bool:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at_s) * self._most_per_s)
        self._at_s = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
