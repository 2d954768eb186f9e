"""Traces of requests, as OpenTelemetry's own collector in memory gets them."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cluster.config.request_log import TracingConfig
from cluster.telemetry.requests.stages import FailoverSpan
from cluster.telemetry.traces import request_tracer
from cluster.telemetry.traces.request_tracer import RequestTracer
from tests.cluster.telemetry.traces.test_stage_spans import ROW
from tests.otlp_collector import collector

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
ENDED = replace(ROW, received_at=1e9, total_s=2.1)


def traced(row, parent="", **config):
    """What a collector has of a request."""
    memory = InMemorySpanExporter()
    tracer = RequestTracer(TracingConfig(**config), "router-0", SimpleSpanProcessor(memory))
    begun = tracer.begin(parent)
    tracer.end(begun, row)
    tracer.close()
    return begun, memory.get_finished_spans()


def test_the_stages_are_children_of_the_request():
    begun, (*stages, whole) = traced(ENDED)
    assert whole.name == "request chat" and whole.parent is None
    assert whole.resource.attributes["service.instance.id"] == "router-0"
    assert (whole.start_time, whole.end_time) == (10**18, 10**18 + 2_100_000_000)
    assert {one.parent.span_id for one in stages} == {whole.context.span_id}
    assert [one.name for one in stages][2] == "prefill"
    assert stages[2].start_time == 10**18 + 300_000_000
    named = f"00-{whole.context.trace_id:032x}-{whole.context.span_id:016x}"
    assert begun.traceparent[:-3] == named and int(begun.traceparent[-1], 16) & 1
    assert [one.name for one in whole.events] == ["first token"]


def test_a_client_s_trace_goes_on():
    begun, spans = traced(ENDED, PARENT, share=0.0)
    assert {one.context.trace_id for one in spans} == {TRACE}
    assert spans[-1].parent.span_id == SPAN
    assert begun.traceparent.startswith(PARENT[:36]) and begun.traceparent != PARENT


@pytest.mark.parametrize("parent", [PARENT[:-1] + "0", "ff" + PARENT[2:], "00-" + "0" * 32])
def test_what_is_not_sampled_or_not_valid_begins_nothing(parent):
    if len(parent) < len(PARENT):
        parent += PARENT[35:]
    begun, spans = traced(ENDED, parent, share=0.0)
    assert not spans and not int(begun.traceparent[-1], 16) & 1


def test_a_failure_is_a_status_and_a_cancel_is_none():
    _, spans = traced(replace(ENDED, outcome="Refused", reason="no capacity", choices=()))
    assert (spans[0].status.is_ok, spans[0].status.description) == (False, "no capacity")
    _, spans = traced(replace(ENDED, outcome="cancelled", reason="left"))
    assert spans[-1].status.is_ok


def test_a_failover_links_to_what_it_broke_off():
    lost = replace(ENDED.choices[0], failover_spans=(FailoverSpan(1.2, 1.5, "d9"),))
    _, spans = traced(replace(ENDED, choices=(lost,)))
    (failover,) = (one for one in spans if one.name == "failover")
    (link,) = failover.links
    (broken,) = (one for one in spans if one.context.span_id == link.context.span_id)
    assert broken.end_time == failover.start_time


def test_the_process_s_own_tracing_is_untouched():
    before = trace.get_tracer_provider()
    traced(ENDED)
    assert trace.get_tracer_provider() is before


def test_a_collector_gets_them_by_otlp():
    with collector() as taken:
        tracer = RequestTracer.to_collector(TracingConfig(otlp=taken.url), "router-0")
        tracer.end(tracer.begin(""), ENDED)
        tracer.close()
        tracer.close()
    names = [one.name for one in taken.spans()]
    assert (names.count("request chat"), names.count("decode")) == (1, 1)


def test_a_collector_that_is_away_delays_nobody():
    tracer = RequestTracer.to_collector(
        TracingConfig(otlp="http://127.0.0.1:9", buffered_spans=64), "router-0"
    )
    for _ in range(50):
        tracer.end(tracer.begin(""), ENDED)
    tracer.close()


def test_a_collector_that_never_answers_holds_the_end_for_one_bound(monkeypatch):
    monkeypatch.setattr(request_tracer, "SEND_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        config = TracingConfig(otlp=url, most_per_s=1000, buffered_spans=8192)
        tracer = RequestTracer.to_collector(config, "router-0")
        for _ in range(300):
            tracer.end(tracer.begin(""), ENDED)
        began_s = time.monotonic()
        tracer.close()
        assert time.monotonic() - began_s < 3
