"""Traces requests: a trace is begun when a request arrives, and its spans are made from its row.

Spans are made at once when the request has ended, without OpenTelemetry's tracer, which takes eight
times as long for them. The process's own tracer provider is untouched, since Ray sets it where Ray
traces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
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
SEND_S = 5.0
# Bound: spans that are encoded at once. The event loop waits meanwhile, for 2 ms at most.
_MOST_BATCH = 64
_SCOPE = InstrumentationScope("tandem")


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """The span of a request that runs, and its parent if a client sent one."""

    context: SpanContext
    parent: SpanContext | None = None

    @property
    def traceparent(self) -> str:
        """Names the span to other processes, in W3C's form."""
        context = self.context
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class RequestTracer:
    """Makes the traces of one router. `processor` takes the spans that ended.

    `cut_off` makes `processor` drop what it has not sent; any thread may call it.
    """

    def __init__(
        self,
        config: TracingConfig,
        router: str,
        processor: SpanProcessor,
        cut_off: Callable[[], object] | None = None,
    ) -> None:
        self._resource = Resource.create(
            {"service.name": "tandem-router", "service.instance.id": router}
        )
        self._sampler = CappedSampler(config.share, config.most_per_s)
        self._processor = processor
        self._cut_off = cut_off
        self._ids = RandomIdGenerator()

    @classmethod
    def to_collector(cls, config: TracingConfig, router: str) -> RequestTracer:
        """A tracer that sends spans to the configured collector from a thread of its own."""
        exporter = OTLPSpanExporter(endpoint=config.otlp, timeout=SEND_S)
        processor = BatchSpanProcessor(
            exporter, max_queue_size=config.buffered_spans, max_export_batch_size=_MOST_BATCH
        )
        return cls(config, router, processor, exporter.shutdown)

    def begin(self, traceparent: str) -> RequestSpan:
        """The span of a new request; its parent is the client's `traceparent`, if not empty."""
        parent = _context_of(traceparent)
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        within = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        decision = self._sampler.should_sample(within, trace_id, "request").decision
        flags = TraceFlags.DEFAULT if decision is Decision.DROP else TraceFlags.SAMPLED
        return RequestSpan(self._context(trace_id, TraceFlags(flags)), parent)

    def end(self, begun: RequestSpan, row: RequestRow) -> None:
        """Make the request's span and those of its stages, if it is sampled."""
        context = begun.context
        if not context.trace_flags.sampled:
            return
        stages = stage_spans(row)
        contexts = [self._context(context.trace_id, context.trace_flags) for _ in stages]
        for stage, own in zip(stages, contexts, strict=True):
            broken = stage.breaks_off
            self._put(
                ReadableSpan(
                    stage.name,
                    own,
                    context,
                    self._resource,
                    stage.attributes,
                    links=() if broken is None else (Link(contexts[broken]),),
                    instrumentation_scope=_SCOPE,
                    start_time=_ns(row, stage.begin_s),
                    end_time=_ns(row, stage.end_s),
                )
            )
        self._put(self._whole(begun, row))

    def close(self) -> None:
        """Send what waits, and end; blocks for at most a few seconds. Idempotent.

        OpenTelemetry's own end waits for each batch that is left, one after the other.
        """
        cut_off = threading.Timer(SEND_S, self._cut_off or (lambda: None))
        cut_off.daemon = True
        cut_off.start()
        try:
            self._processor.shutdown()
        finally:
            cut_off.cancel()

    def _whole(self, begun: RequestSpan, row: RequestRow) -> ReadableSpan:
        events: tuple[Event, ...] = ()
        came_s = [one.ttft_s for one in row.choices if one.ttft_s is not None]
        if came_s:
            events = (Event("first token", timestamp=_ns(row, min(came_s))),)
        failed = row.failed and row.outcome != "cancelled"
        return ReadableSpan(
            f"request {row.endpoint}",
            begun.context,
            begun.parent,
            self._resource,
            request_attributes(row),
            events,
            kind=SpanKind.SERVER,
            instrumentation_scope=_SCOPE,
            status=Status(StatusCode.ERROR, row.reason or row.outcome) if failed else Status(),
            start_time=_ns(row, 0.0),
            end_time=_ns(row, row.total_s or 0.0),
        )

    def _put(self, span: ReadableSpan) -> None:
        self._processor.on_end(span)

    def _context(self, trace_id: int, flags: TraceFlags) -> SpanContext:
        return SpanContext(
            trace_id, self._ids.generate_span_id(), is_remote=False, trace_flags=flags
        )


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
