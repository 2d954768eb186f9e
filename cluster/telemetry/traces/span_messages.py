"""The traces of requests as OTLP's messages, made at once from rows.

OpenTelemetry's own spans and their encoder take twice as long. Pure, but for random ids.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, SpanFlags, Status

from cluster.telemetry.requests.row import RequestRow
from cluster.telemetry.traces.stage_spans import Value, request_attributes, stage_spans

_NS = 1_000_000_000
# Bound: attributes that are kept, since most requests have the same ones.
_MOST_ATTRIBUTES = 4096
_SCOPE = InstrumentationScope(name="tandem")
_LOCAL = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """The span of a request that runs, and the id of its parent, 0 unless a client sent one."""

    trace_id: int
    span_id: int
    sampled: bool
    parent_id: int = 0

    @property
    def traceparent(self) -> str:
        """Names the span to other processes, in W3C's form."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


def new_id(bits: int) -> int:
    """A random id that is not zero, since zero names nothing."""
    return random.getrandbits(bits) or 1


def resource_of(attributes: Mapping[str, Value]) -> Resource:
    """What made the spans."""
    return Resource(attributes=_attributes(attributes))


def export_request(
    resource: Resource, ended: Sequence[tuple[RequestSpan, RequestRow]]
) -> ExportTraceServiceRequest:
    """The spans of requests that ended, each with those of its stages before it."""
    message = ExportTraceServiceRequest()
    # Spans are made in their place, because protobuf copies what is put into another message.
    scope = message.resource_spans.add(resource=resource).scope_spans.add(scope=_SCOPE)
    for begun, row in ended:
        _add_spans(scope, begun, row)
    return message


def _add_spans(scope: ScopeSpans, begun: RequestSpan, row: RequestRow) -> None:
    trace_id, parent_id = begun.trace_id.to_bytes(16), begun.span_id.to_bytes(8)
    spans: list[Span] = []
    for stage in stage_spans(row):
        broken, links = stage.breaks_off, []
        if broken is not None:
            links = [Span.Link(trace_id=trace_id, span_id=spans[broken].span_id, flags=_LOCAL)]
        spans.append(
            scope.spans.add(
                trace_id=trace_id,
                span_id=new_id(64).to_bytes(8),
                parent_span_id=parent_id,
                name=stage.name,
                kind=Span.SPAN_KIND_INTERNAL,
                start_time_unix_nano=_ns(row, stage.begin_s),
                end_time_unix_nano=_ns(row, stage.end_s),
                attributes=_attributes(stage.attributes),
                links=links,
                flags=_LOCAL,
            )
        )
    _add_whole(scope, begun, row)


def _add_whole(scope: ScopeSpans, begun: RequestSpan, row: RequestRow) -> None:
    events = []
    came_s = [one.ttft_s for one in row.choices if one.ttft_s is not None]
    if came_s:
        events = [Span.Event(name="first token", time_unix_nano=_ns(row, min(came_s)))]
    status = None
    if row.failed and row.outcome != "cancelled":
        status = Status(code=Status.STATUS_CODE_ERROR, message=row.reason or row.outcome)
    scope.spans.add(
        trace_id=begun.trace_id.to_bytes(16),
        span_id=begun.span_id.to_bytes(8),
        parent_span_id=begun.parent_id.to_bytes(8) if begun.parent_id else b"",
        name=f"request {row.endpoint}",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=_ns(row, 0.0),
        end_time_unix_nano=_ns(row, row.total_s or 0.0),
        attributes=_attributes(request_attributes(row)),
        events=events,
        status=status,
        flags=_REMOTE if begun.parent_id else _LOCAL,
    )


def _attributes(known: Mapping[str, Value]) -> list[KeyValue]:
    return [_attribute(name, one) for name, one in known.items()]


@lru_cache(_MOST_ATTRIBUTES, typed=True)
def _attribute(name: str, value: Value) -> KeyValue:
    return KeyValue(key=name, value=_value(value))


def _value(value: Value) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value)


def _ns(row: RequestRow, seconds: float) -> int:
    return round((row.received_at + seconds) * _NS)
