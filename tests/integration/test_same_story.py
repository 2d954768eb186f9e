"""A burst in which a replica dies: all that tells of it has the same numbers, and the right ones.

What is right is measured here apart from the rows: by the clients, and by the times of log lines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import httpx
import pytest

from cluster.client.admin_client import list_requests
from cluster.config.request_log import TracingConfig
from cluster.telemetry.requests.stages import stage_marks
from engine.errors import TandemError
from protos.router_pb2 import ListRequestsRequest
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster
from tests.integration.test_resume import Stream, die
from tests.loop_pauses import pauses
from tests.metrics_page import recorded
from tests.otlp_collector import collector

BURST, LENGTH = 12, 300
PROMPTS = {
    f"burst-{step}": [number * step % 256 for number in range(40 + step)]
    for step in range(3, 3 + BURST)
}
DEAD = "decode-1"


def root_of(spans):
    (whole,) = (one for one in spans if one.name.startswith("request "))
    return whole


def attributes(span):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def burst(local):
    """Streams of which one is cancelled and one is refused; a replica dies in the middle.

    Returns the streams, when the replica died, and how late a time can be. Router, replicas and
    clients are on one event loop, which engines and other processes keep waiting.
    """
    options = {"max_tokens": LENGTH, "temperature": 0, "ignore_eos": True, "timing": True}
    streams = {
        name: Stream(local, prompt, request_id=name, **options) for name, prompt in PROMPTS.items()
    }
    async with pauses() as loop:
        for stream in streams.values():
            await stream.has(10)
        streams.pop("burst-3").task.cancel()
        died_s = time.time()
        await die(local.decode[1])
        with pytest.raises(TandemError):
            await local.client.complete([1] * 9, max_tokens=5, model="of nobody")
        await asyncio.gather(*(one.task for one in streams.values()))
        await eventually(lambda: len(local.router.requests.store) == BURST + 1)
    return streams, died_s, 0.02 + 2 * loop.longest_wall_s


async def test_all_that_tells_of_a_burst_agrees(config, caplog):
    caplog.set_level(logging.INFO)
    config = replace(
        config,
        kv=replace(config.kv, blocks=1200),
        prefill=replace(config.prefill, local_prefill_tokens=0),
        decode=replace(config.decode, replicas=2),
    )
    with collector() as taken, recorded() as page:
        traced = replace(config, tracing=TracingConfig(otlp=taken.url, most_per_s=1000.0))
        async with cluster(traced) as local:
            streams, died_s, late_s = await burst(local)
            rows = list(local.router.requests.store)
            await _console_agrees(local, rows)
    outcomes = [row.outcome for row in rows]
    assert outcomes.count("ok") == BURST - 1 and outcomes.count("cancelled") == 1
    choices = [choice for row in rows for choice in row.choices]
    moved = [one for one in choices if one.failovers]
    assert moved and all(len(one.failover_spans) == one.failovers == 1 for one in moved)
    _metrics_agree(page, rows, choices)
    _traces_agree(taken, rows)
    by_id = {row.request_id: row for row in rows}
    for name, stream in streams.items():
        row = by_id[name]
        _client_agrees(stream, row, died_s, late_s)
        _log_lines_agree([one for one in caplog.records if _is_of(one, row)], row, late_s)
        _summary_agrees(stream.summary, row.choices[0])


def _is_of(record, row):
    return getattr(record, "request_id", None) == row.request_id


def _client_agrees(stream, row, died_s, late_s):
    """The client asks when the request arrives, and hears of a token after the router."""
    (choice,) = row.choices
    assert abs(row.received_at - stream.asked_s) < late_s
    for at_s, told_s in ((choice.ttft_s, stream.came_s[0]), (choice.ttlt_s, stream.came_s[-1])):
        assert 0 <= told_s - (row.received_at + at_s) < late_s
    for lost in choice.failover_spans:
        begin_s, end_s = row.received_at + lost.begin_s, row.received_at + lost.end_s
        assert begin_s - late_s < died_s < end_s
        assert lost.replica == DEAD and lost.begin_s > choice.ttft_s
        # What the client saw as its longest pause around then.
        gaps = zip(stream.came_s, stream.came_s[1:], strict=False)
        pause_s = max(after - before for before, after in gaps if before - late_s < died_s < after)
        assert abs(pause_s - (lost.end_s - lost.begin_s)) < late_s


def _log_lines_agree(records, row, late_s):
    """A line is written as soon as what it says has happened, which is where a stage ends."""
    marks = {}
    for mark in stage_marks(row.choices[0]):
        marks.setdefault(mark.stage, mark)
    lines = {}
    for record in records:
        lines.setdefault(record.message, record.created - row.received_at)
    first_s, told_s = marks["first_flush"].end_s, marks["prefill"].end_s
    for message, at_s, latest_s in (
        ("request assigned", marks["admission"].end_s, first_s),
        ("prefill started", marks["prefill"].begin_s, told_s),
        ("first token sampled", told_s, first_s),
        ("first token passed on", first_s, row.choices[0].ttlt_s),
        ("decode started", row.choices[0].transfer_end_s, row.choices[0].ttlt_s),
    ):
        said_s = lines[message]
        assert at_s - 0.01 < said_s < min(latest_s, at_s + late_s) + 0.01, message
    assert ("request failed over" in lines) == ("failover" in marks)
    if "failover" in marks:
        said_s, lost = lines["request failed over"], marks["failover"]
        assert lost.begin_s < said_s < lost.end_s
        assert lost.begin_s < lines["stream resumes here"] < lost.end_s


def _summary_agrees(summary, choice):
    shared = ("queue_s", "prefill_s", "first_flush_s", "ttft_s", "decode_s", "preemptions")
    shared += ("prefill_replica", "decode_replica", "cached_tokens", "decode_admission_s")
    for name in shared:
        assert getattr(summary, name) == getattr(choice, name), name
    assert summary.transfer_s == choice.transfer_exposed_s
    told = [(one.stage, one.begin_s, one.end_s) for one in summary.stages]
    assert told == [(one.stage, one.begin_s, one.end_s) for one in stage_marks(choice)]


async def _console_agrees(local, rows):
    """The console's list and its view of one request, and what `tandem explain` gets."""
    async with httpx.AsyncClient(base_url=f"http://{local.router.http_address}/console") as client:
        shown = (await client.get("/requests")).json()["rows"]
        by_id = {one["request_id"]: one for one in shown}
        assert by_id.keys() == {row.request_id for row in rows}
        for row in rows:
            told = by_id[row.request_id]
            assert told["outcome"] == row.outcome
            assert told.get("completion_tokens") == row.completion_tokens
            assert told["total_s"] == pytest.approx(row.total_s, abs=1e-6)
            if not row.choices:
                continue
            (choice,) = row.choices
            for name in ("ttft_s", "ttlt_s", "failovers", "prefill_replica", "decode_replica"):
                assert told[name] == pytest.approx(getattr(choice, name), abs=1e-6), name
            expected = [(one.stage, one.begin_s, one.end_s) for one in stage_marks(choice)]
            assert [one[0] for one in told["stages"]] == [one[0] for one in expected]
            view = (await client.get("/request", params={"id": row.request_id})).json()
            asked = ListRequestsRequest(request_id=row.request_id)
            (explained,) = await list_requests(local.router.grpc_address, asked, OPERATOR_KEY)
            for whole in (view, explained):
                stages = whole["choices"][0]["stages"]
                found = [(one["stage"], one["begin_s"], one["end_s"]) for one in stages]
                for one, other in zip(found, expected, strict=True):
                    assert one == (other[0], *map(approximately, other[1:]))
            (most,) = (one for one in view["words"]["0"] if one.startswith("The largest part of"))
            assert "failover" not in most


def approximately(value):
    return pytest.approx(value, abs=1e-6)


def _metrics_agree(page, rows, choices):
    for outcome in {row.outcome for row in rows}:
        counted = page.value("tandem_requests_total", outcome=outcome)
        assert counted == sum(row.outcome == outcome for row in rows), outcome
    first = [one.ttft_s for one in choices if one.ttft_s is not None]
    assert page.value("tandem_ttft_seconds_count") == len(first)
    assert page.value("tandem_ttft_seconds_sum") == pytest.approx(sum(first))
    for stage, name in (("queue", "queue_s"), ("prefill", "prefill_s")):
        told = sum(getattr(one, name) for one in choices if getattr(one, name) is not None)
        assert page.value("tandem_stage_seconds_sum", stage=stage) == pytest.approx(told)
    assert page.value("tandem_failovers_total") == sum(one.failovers for one in choices)
    pauses = [one.failover_pause_s for one in choices if one.failover_pause_s]
    assert page.value("tandem_failover_pause_seconds_count") == len(pauses)
    assert page.value("tandem_failover_pause_seconds_sum") == pytest.approx(sum(pauses))
    tokens = sum(one.completion_tokens for one in choices)
    assert page.value("tandem_answer_tokens_total") == tokens
    totals = [row.total_s for row in rows if row.outcome == "ok"]
    assert page.value("tandem_request_seconds_sum") == pytest.approx(sum(totals))


def _traces_agree(taken, rows):
    by_trace = {}
    for span in taken.spans():
        by_trace.setdefault(span.trace_id, []).append(span)
    told = {attributes(root_of(spans))["tandem.request_id"]: spans for spans in by_trace.values()}
    assert told.keys() == {row.request_id for row in rows}
    for row in rows:
        spans = told[row.request_id]
        whole = root_of(spans)
        stages = [one for one in spans if one is not whole]
        expected = [stage for choice in row.choices for stage in stage_marks(choice)]
        assert [one.name for one in stages] == [stage.stage for stage in expected]
        for span, stage in zip(stages, expected, strict=True):
            for at, told_s in (
                (span.start_time_unix_nano, stage.begin_s),
                (span.end_time_unix_nano, stage.end_s),
            ):
                assert at / 1e9 - row.received_at == pytest.approx(told_s, abs=1e-5)
        took_s = (whole.end_time_unix_nano - whole.start_time_unix_nano) / 1e9
        assert took_s == pytest.approx(row.total_s, abs=1e-6)
        found = attributes(whole)
        assert found["tandem.outcome"] == row.outcome
        assert found.get("gen_ai.usage.output_tokens") == row.completion_tokens
        for span, before, after in zip(stages[1:], stages, stages[2:], strict=False):
            if span.name == "failover":
                _failover_agrees(span, before, after)
        assert not any(one.links for one in stages if one.name != "failover")


def _failover_agrees(span, before, after):
    """It is linked to the decode that it cut off, on the dead replica, and decode goes on after."""
    (link,) = span.links
    assert link.span_id == before.span_id
    assert before.name == after.name == "decode"
    assert attributes(span)["tandem.replica"] == attributes(before)["tandem.replica"] == DEAD
    assert attributes(after)["tandem.replica"] == "decode-0"
    assert before.end_time_unix_nano == span.start_time_unix_nano
    assert span.end_time_unix_nano == after.start_time_unix_nano
