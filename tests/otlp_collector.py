"""A collector of OpenTelemetry's traces, by OTLP over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it gets; `url` is its address."""

    url: str

    def __init__(self) -> None:
        self._requests: list[trace_service_pb2.ExportTraceServiceRequest] = []

    def Export(self, request, context):  # noqa: N802
        self._requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, trace_id: int | None = None) -> list[Span]:
        """The spans so far; those of one trace, if it is named."""
        return [
            span
            for request in self._requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if trace_id is None or int.from_bytes(span.trace_id) == trace_id
        ]


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port of loopback."""
    server, taking = grpc.server(futures.ThreadPoolExecutor(1)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(taking, server)
    taking.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield taking
    finally:
        server.stop(None)
