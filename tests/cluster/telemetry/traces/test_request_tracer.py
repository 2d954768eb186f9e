"""Traces of requests, as a collector gets them."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from cluster.config.request_log import TracingConfig
from cluster.telemetry.requests.stages import FailoverSpan
from cluster.telemetry.traces import request_tracer
from cluster.telemetry.traces.request_tracer import RequestTracer
from tests.cluster.telemetry.traces.test_stage_spans import ROW
from tests.otlp_collector import collector

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE, SPAN = bytes.fromhex(PARENT[3:35]), bytes.fromhex(PARENT[36:52])
ENDED = replace(ROW, received_at=1e9, total_s=2.1)


def sent(row, parent="", **config):
    """What goes to a collector for a request."""
    messages = []
    tracer = RequestTracer(TracingConfig(**config), "router-0", messages.append)
    begun = tracer.begin(parent)
    tracer.end(begun, row)
    tracer.close()
    return begun, [spans for one in messages for spans in one.resource_spans]


def traced(row, parent="", **config):
    begun, found = sent(row, parent, **config)
    return begun, [span for one in found for scope in one.scope_spans for span in scope.spans]


def test_the_stages_are_children_of_the_request():
    begun, (*stages, whole) = traced(ENDED)
    assert whole.name == "request chat" and not whole.parent_span_id
    assert (whole.kind, stages[0].kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_INTERNAL)
    times = whole.start_time_unix_nano, whole.end_time_unix_nano
    assert times == (10**18, 10**18 + 2_100_000_000)
    assert {one.parent_span_id for one in stages} == {whole.span_id}
    assert {one.trace_id for one in stages} == {whole.trace_id}
    assert len({one.span_id for one in (*stages, whole)}) == len(stages) + 1
    assert [one.name for one in stages][2] == "prefill"
    assert stages[2].start_time_unix_nano == 10**18 + 300_000_000
    assert begun.traceparent == f"00-{whole.trace_id.hex()}-{whole.span_id.hex()}-01"
    assert [one.name for one in whole.events] == ["first token"]


def test_attributes_keep_their_kinds_and_the_resource_is_named():
    _, (one,) = sent(ENDED)
    resource = {pair.key: pair.value.string_value for pair in one.resource.attributes}
    assert resource["service.instance.id"] == "router-0"
    assert one.scope_spans[0].scope.name == "tandem"
    spans = {span.name: span for span in one.scope_spans[0].spans}
    decode = {pair.key: pair.value for pair in spans["decode"].attributes}
    assert decode["tandem.completion_tokens"].WhichOneof("value") == "int_value"
    whole = {pair.key: pair.value for pair in spans["request chat"].attributes}
    assert whole["tandem.ttft_s"].WhichOneof("value") == "double_value"
    assert decode["tandem.replica"].string_value == "d0"


def test_a_client_s_trace_goes_on():
    begun, spans = traced(ENDED, PARENT, share=0.0)
    assert {one.trace_id for one in spans} == {TRACE}
    assert spans[-1].parent_span_id == SPAN
    assert begun.traceparent.startswith(PARENT[:36]) and begun.traceparent != PARENT


@pytest.mark.parametrize("parent", [PARENT[:-1] + "0", "ff" + PARENT[2:], "00-" + "0" * 32])
def test_what_is_not_sampled_or_not_valid_begins_nothing(parent):
    if len(parent) < len(PARENT):
        parent += PARENT[35:]
    begun, spans = traced(ENDED, parent, share=0.0)
    assert not spans and not int(begun.traceparent[-1], 16) & 1


def test_a_failure_is_a_status_and_a_cancel_is_none():
    _, spans = traced(replace(ENDED, outcome="Refused", reason="no capacity", choices=()))
    assert spans[0].status.code == Status.STATUS_CODE_ERROR
    assert spans[0].status.message == "no capacity"
    _, spans = traced(replace(ENDED, outcome="cancelled", reason="left"))
    assert spans[-1].status.code == Status.STATUS_CODE_UNSET


def test_a_failover_links_to_what_it_broke_off():
    lost = replace(ENDED.choices[0], failover_spans=(FailoverSpan(1.2, 1.5, "d9"),))
    _, spans = traced(replace(ENDED, choices=(lost,)))
    (failover,) = (one for one in spans if one.name == "failover")
    (link,) = failover.links
    (broken,) = (one for one in spans if one.span_id == link.span_id)
    assert broken.end_time_unix_nano == failover.start_time_unix_nano


def test_spans_are_made_on_a_thread_and_a_fault_takes_no_later_ones(caplog):
    threads, faults, sent_one = [], [ValueError("a fault")], threading.Semaphore(0)

    def send(message):
        threads.append(threading.current_thread())
        sent_one.release()
        if faults:
            raise faults.pop()

    tracer = RequestTracer(TracingConfig(), "router-0", send, gather_s=0.0)
    for _ in range(2):
        tracer.end(tracer.begin(""), ENDED)
        assert sent_one.acquire(timeout=30)
    tracer.close()
    assert len(threads) == 2 and threading.main_thread() not in threads
    assert "spans could not be made or sent" in caplog.text


def test_traces_beyond_the_bound_are_dropped_and_the_log_says_so(caplog):
    stuck, messages = threading.Event(), []

    def send(message):
        stuck.wait(30)
        messages.append(message)

    config = TracingConfig(most_per_s=1000, buffered_spans=64)
    tracer = RequestTracer(config, "router-0", send)
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            tracer.end(tracer.begin(""), ENDED)
    stuck.set()
    tracer.close()
    spans = [len(one.resource_spans[0].scope_spans[0].spans) for one in messages]
    assert 0 < sum(spans) < 30 * 10
    assert "traces are dropped" in caplog.text


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
        assert time.monotonic() - began_s < 5, "all batches by themselves take longer"
