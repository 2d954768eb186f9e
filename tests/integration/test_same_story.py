"""A burst in which a replica dies: rows, metrics, traces and console have the same numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from cluster.config.request_log import TracingConfig
from cluster.telemetry.requests.stages import stages_of
from engine.errors import TandemError
from tests.eventually import eventually
from tests.integration.local import cluster
from tests.integration.test_resume import Stream, die
from tests.metrics_page import recorded
from tests.otlp_collector import collector

BURST, LENGTH = 12, 300
PROMPTS = [[number * step % 256 for number in range(40 + step)] for step in range(3, 3 + BURST)]


def root_of(spans):
    (whole,) = (one for one in spans if one.name.startswith("request "))
    return whole


def attributes(span):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def burst(local):
    """Streams of which one is cancelled and one is refused; a replica dies in the middle."""
    options = {"max_tokens": LENGTH, "temperature": 0, "ignore_eos": True}
    streams = [Stream(local, prompt, **options) for prompt in PROMPTS]
    for stream in streams:
        await stream.has(10)
    streams[0].task.cancel()
    await die(local.decode[1])
    with pytest.raises(TandemError):
        await local.client.complete([1] * 9, max_tokens=5, model="of nobody")
    await asyncio.gather(*(one.task for one in streams[1:]))
    store = local.router.requests.store
    await eventually(lambda: len(store) == BURST + 1)
    return list(store)


async def test_rows_metrics_and_traces_agree(config):
    config = replace(
        config,
        kv=replace(config.kv, blocks=1200),
        prefill=replace(config.prefill, local_prefill_tokens=0),
        decode=replace(config.decode, replicas=2),
    )
    with collector() as taken, recorded() as page:
        traced = replace(config, tracing=TracingConfig(otlp=taken.url, most_per_s=1000.0))
        async with cluster(traced) as local:
            rows = await burst(local)
            async with httpx.AsyncClient(base_url=f"http://{local.router.http_address}") as client:
                _console_agrees((await client.get("/console/requests")).json()["rows"], rows)
    outcomes = [row.outcome for row in rows]
    assert outcomes.count("ok") == BURST - 1 and outcomes.count("cancelled") == 1
    choices = [choice for row in rows for choice in row.choices]
    assert any(one.failovers for one in choices)
    _metrics_agree(page, rows, choices)
    _traces_agree(taken, rows)


def _console_agrees(shown, rows):
    by_id = {one["request_id"]: one for one in shown}
    assert by_id.keys() == {row.request_id for row in rows}
    for row in rows:
        told = by_id[row.request_id]
        assert told["outcome"] == row.outcome
        assert told.get("completion_tokens") == row.completion_tokens
        assert told["total_s"] == pytest.approx(row.total_s, abs=1e-6)
        if row.ttft_s is not None:
            assert told["ttft_s"] == pytest.approx(row.ttft_s, abs=1e-6)


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
        expected = [stage for choice in row.choices for stage in stages_of(choice)]
        assert [one.name for one in stages] == [stage.stage for stage in expected]
        for span, stage in zip(stages, expected, strict=True):
            took_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
            assert took_s == pytest.approx(stage.end_s - stage.begin_s, abs=1e-6)
        took_s = (whole.end_time_unix_nano - whole.start_time_unix_nano) / 1e9
        assert took_s == pytest.approx(row.total_s, abs=1e-6)
        found = attributes(whole)
        assert found["tandem.outcome"] == row.outcome
        assert found.get("gen_ai.usage.output_tokens") == row.completion_tokens
        broken = [one for one in stages if one.name == "failover"]
        known = {one.span_id for one in stages}
        assert all(link.span_id in known for one in broken for link in one.links)
