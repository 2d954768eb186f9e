"""The request log: one row for each request that ended, in memory, and as a line at level info.

Where requests are traced, the row ends the request's trace, too.

… info cluster.telemetry.request_log request ended request_id=r-1 endpoint=chat config=3f9a1c02
outcome=ok …
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cluster.telemetry.requests.files import RowFiles
from cluster.telemetry.requests.row import RequestRow, brief
from cluster.telemetry.requests.store import RequestStore

if TYPE_CHECKING:
    # OpenTelemetry's exporter takes a while to import, and few routers trace.
    from cluster.telemetry.traces.request_tracer import RequestTracer
    from cluster.telemetry.traces.span_messages import RequestSpan

log = logging.getLogger(__name__)

# What the line has of a row.
_LOGGED = (
    *("request_id", "endpoint", "config", "outcome", "tenant", "reason", "decided_s", "arm"),
    *("prompt_tokens", "completion_tokens", "queue_s", "prefill_s", "first_flush_s", "ttft_s"),
    *("total_s", "x_request_id", "traceparent"),
)


class RequestLog:
    """Takes the row of each request that ended. With `files` it is written there, too.

    `tracer` traces requests. Both may be exchanged at any time.
    """

    def __init__(
        self,
        store: RequestStore | None = None,
        files: RowFiles | None = None,
        tracer: RequestTracer | None = None,
    ) -> None:
        self.files = files
        self.tracer = tracer
        self.store = RequestStore() if store is None else store

    def begin(self, traceparent: str) -> RequestSpan | None:
        """Begin the trace of a request, as `RequestTracer.begin`; None where none is traced."""
        if self.tracer is None:
            return None
        return self.tracer.begin(traceparent)

    def add(self, row: RequestRow, span: RequestSpan | None = None) -> int:
        """Keep a row, and end the request's trace; returns its number, for `vacated`."""
        write(row)
        if self.tracer is not None and span is not None:
            self.tracer.end(span, row)
        number = self.store.add(row)
        if self.files is not None:
            self.files.put(number)
        return number

    def vacated(self, number: int, seconds: float) -> None:
        """Note the time to cancel of a request that was cancelled, once it is known."""
        self.store.vacated(number, seconds)

    async def close(self) -> None:
        """End files and traces, once their last rows are written and sent. Idempotent."""
        files, self.files = self.files, None
        tracer, self.tracer = self.tracer, None
        if files is not None:
            await asyncio.to_thread(files.close)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


def write(row: RequestRow) -> None:
    """Log the row without its unknown fields."""
    if log.isEnabledFor(logging.INFO):
        known = brief(row)
        extra = {name: known[name] for name in _LOGGED if name in known}
        log.info("request ended", extra=extra)
