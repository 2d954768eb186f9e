"""Traces requests: a span from the request's arrival, and its stages when it has ended.

The provider is this router's own. The process's global one stays as it is, since Ray sets it where
Ray traces.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from cluster.config.request_log import TracingConfig
from cluster.telemetry.requests.row import RequestRow
from cluster.telemetry.traces.capped_sampler import CappedSampler
from cluster.telemetry.traces.stage_spans import request_attributes, stage_spans

_NS = 1_000_000_000
# Bound: one attempt to send spans, and the wait at the end of a router.
_SEND_S = 5.0
_MOST_BATCH = 512


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """The span of a request that runs; `traceparent` names it to other processes."""

    span: Span
    traceparent: str


class RequestTracer:
    """Makes the traces of one router. `processor` takes the spans that ended."""

    def __init__(self, config: TracingConfig, router: str, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(
            sampler=CappedSampler(config.share, config.most_per_s),
            resource=Resource.create(
                {"service.name": "tandem-router", "service.instance.id": router}
            ),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tandem")

    @classmethod
    def to_collector(cls, config: TracingConfig, router: str) -> RequestTracer:
        """A tracer that sends spans to the configured collector from a thread of its own."""
        exporter = OTLPSpanExporter(endpoint=config.otlp, timeout=_SEND_S)
        processor = BatchSpanProcessor(
            exporter,
            max_queue_size=config.buffered_spans,
            max_export_batch_size=min(_MOST_BATCH, config.buffered_spans),
        )
        return cls(config, router, processor)

    def begin(self, endpoint: str, received_at: float, traceparent: str) -> RequestSpan:
        """The span of a request that arrived at `received_at`, in seconds since the epoch.

        Its parent is the client's `traceparent`, if it is not empty.
        """
        parent = _context_of(traceparent)
        span = self._tracer.start_span(
            f"request {endpoint}",
            context=None if parent is None else set_span_in_context(NonRecordingSpan(parent)),
            kind=SpanKind.SERVER,
            start_time=round(received_at * _NS),
        )
        return RequestSpan(span, _traceparent_of(span.get_span_context()))

    def end(self, begun: RequestSpan, row: RequestRow) -> None:
        """End the request's span, with the stages of its row."""
        span = begun.span
        if not span.is_recording():
            return
        span.set_attributes(request_attributes(row))
        if row.ttft_s is not None:
            span.add_event("first token", timestamp=_ns(row, row.ttft_s))
        if row.failed and row.outcome != "cancelled":
            span.set_status(Status(StatusCode.ERROR, row.reason or row.outcome))
        within, made = set_span_in_context(span), list[Span]()
        for stage in stage_spans(row):
            links = []
            if stage.breaks_off is not None:
                links.append(Link(made[stage.breaks_off].get_span_context()))
            child = self._tracer.start_span(
                stage.name,
                context=within,
                attributes=stage.attributes,
                links=links,
                start_time=_ns(row, stage.begin_s),
            )
            child.end(_ns(row, stage.end_s))
            made.append(child)
        span.end(_ns(row, row.total_s or 0.0))

    def close(self) -> None:
        """Send what waits, and end; blocks for at most a few seconds. Idempotent."""
        self._provider.force_flush(round(_SEND_S * 1000))
        self._provider.shutdown()


def _ns(row: RequestRow, seconds: float) -> int:
    return round((row.received_at + seconds) * _NS)


def _context_of(traceparent: str) -> SpanContext | None:
    """The context in a `traceparent` of W3C; None where there is none that is valid."""
    if not traceparent:
        return None
    version, trace_id, span_id, flags = traceparent.split("-")
    if version == "ff":
        return None
    context = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return context if context.is_valid else None


def _traceparent_of(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
