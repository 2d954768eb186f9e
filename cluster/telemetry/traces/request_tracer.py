"""Traces requests: a trace is begun when a request arrives, and its spans are made from its row.

A thread makes and sends them once the request has ended, so that no token waits for them. The
process's own tracer provider is untouched, since Ray sets it where Ray traces.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource

from cluster.config.request_log import TracingConfig
from cluster.telemetry.gathered_queue import GatheredQueue
from cluster.telemetry.requests.row import RequestRow
from cluster.telemetry.traces.capped_sampler import CappedSampler
from cluster.telemetry.traces.span_messages import (
    RequestSpan,
    export_request,
    new_id,
    resource_of,
)
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

# Bound: one attempt to send spans, and the wait at the end of a router.
SEND_S = 5.0
# How long spans wait for others.
GATHER_S = 1.0
_LOG_EVERY_S = 60.0
# The spans of most requests.
_SPANS_A_REQUEST = 8
# Bound: requests whose spans are made at once. The event loop waits meanwhile, for 2 ms at most.
_MOST_BATCH = 16


class RequestTracer:
    """Makes the traces of one router. `send` takes them on a thread, and may fail.

    `cut_off` makes a `send` end that waits, and all later ones fail; any thread may call it.
    """

    def __init__(
        self,
        config: TracingConfig,
        router: str,
        send: Callable[[ExportTraceServiceRequest], object],
        cut_off: Callable[[], object] = lambda: None,
        gather_s: float = GATHER_S,
    ) -> None:
        # It has what the environment says, too.
        named = {"service.name": "tandem-router", "service.instance.id": router}
        self._resource = resource_of(Resource.create(named).attributes)  # type: ignore[arg-type]
        self._sampler = CappedSampler(config.share, config.most_per_s)
        self._send = send
        self._cut_off = cut_off
        self._cut = False
        self._dropped = RareLog(log, "traces are dropped: the collector is too slow", _LOG_EVERY_S)
        most = max(1, config.buffered_spans // _SPANS_A_REQUEST)
        self._ended: GatheredQueue[tuple[RequestSpan, RequestRow]] = GatheredQueue(most, gather_s)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @classmethod
    def to_collector(cls, config: TracingConfig, router: str) -> RequestTracer:
        """A tracer that sends spans to the configured collector."""
        exporter = _MessageExporter(endpoint=config.otlp, timeout=SEND_S)
        return cls(config, router, exporter.send, exporter.shutdown)

    def begin(self, traceparent: str) -> RequestSpan:
        """The span of a new request; its parent is the client's `traceparent`, if not empty."""
        parent = _parent_of(traceparent)
        if parent is None:
            trace_id = new_id(128)
            return RequestSpan(trace_id, new_id(64), self._sampler.chooses(trace_id, parent=None))
        trace_id, parent_id, sampled = parent
        chosen = self._sampler.chooses(trace_id, parent=sampled)
        return RequestSpan(trace_id, new_id(64), chosen, parent_id)

    def end(self, begun: RequestSpan, row: RequestRow) -> None:
        """Send the request's span and those of its stages soon, if it is sampled.

        They are dropped where too many wait.
        """
        if begun.sampled and not self._ended.put((begun, row)):
            self._dropped.note()

    def close(self) -> None:
        """Send what waits, and end; blocks for `SEND_S` at most. Idempotent."""
        if self._cut:
            return
        self._ended.end()
        self._thread.join(SEND_S)
        self._cut = True
        self._cut_off()

    def _run(self) -> None:
        last = False
        while not last:
            found, last = self._ended.take()
            for first in range(0, len(found), _MOST_BATCH):
                if self._cut:
                    return
                self._send_batch(found[first : first + _MOST_BATCH])

    def _send_batch(self, batch: list[tuple[RequestSpan, RequestRow]]) -> None:
        try:
            self._send(export_request(self._resource, batch))
        except Exception:
            log.exception("spans could not be made or sent")


class _MessageExporter(OTLPSpanExporter):
    """OpenTelemetry's exporter, for messages instead of its own spans."""

    def send(self, message: Any) -> None:
        """Send a message; the exporter logs where that fails."""
        self.export(message)

    def _translate_data(self, data: Any) -> ExportTraceServiceRequest:
        message: ExportTraceServiceRequest = data
        return message

    def _count_data(self, data: Any) -> int:
        return sum(len(scope.spans) for one in data.resource_spans for scope in one.scope_spans)


def _parent_of(traceparent: str) -> tuple[int, int, bool] | None:
    """Trace, span, and whether it is sampled, of a `traceparent` of W3C; None where not valid."""
    if not traceparent:
        return None
    version, trace_id, span_id, flags = traceparent.split("-")
    found = int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1)
    return None if version == "ff" or not (found[0] and found[1]) else found
