"""What a working cluster records, by the names and labels that alerts and dashboards ask for."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace

import pytest

from cluster.admission.router_capacity import RouterCapacity
from cluster.api import Tokens
from cluster.chart.metric_catalogue import all_metrics, samples
from cluster.config.endpoints import EndpointConfig
from engine.errors import InvalidRequest, NotFound, Overloaded
from tests.eventually import eventually
from tests.integration.local import LocalCluster, cluster
from tests.metrics_page import Recorded, recorded

# Metrics that only a fault, a lack of capacity or another kind of request records.
ONLY_THEN = {
    "tandem_prefill_step_failures_total",
    "tandem_decode_step_failures_total",
    "tandem_kv_links_broken_total",
    "tandem_replicas_lost_total",
    "tandem_failovers_total",
    "tandem_failover_pause_seconds",
    "tandem_decode_local_prefills_total",
    "tandem_pool_desired_replicas",
    "tandem_canary_requests_total",
    "tandem_canary_ttft_seconds",
    "tandem_canary_rolled_back",
    "tandem_scored_tokens_total",
    "tandem_refused_connections_total",
    "tandem_decode_recomputed_tokens_total",
}
# Counted with what is full or found again: of other tests.
NOT_YET = {
    "tandem_decode_preemptions_total",
    "tandem_prefix_hit_tokens_total",
    "tandem_prefix_evictions_total",
    "tandem_streams_resumed_total",
    "tandem_streams_taken_over_total",
    "tandem_request_log_lost_total",
}


async def ask(local: LocalCluster, seed: int, tenant: str = "default", **options: object) -> None:
    prompt = [seed + index % 50 for index in range(100)]
    await local.client.complete(
        prompt, max_tokens=6, ignore_eos=True, seed=seed, tenant=tenant, **options
    )


async def abandon(local: LocalCluster) -> None:
    events = local.client.generate([7] * 100, max_tokens=900, ignore_eos=True)
    async for event in events:
        if isinstance(event, Tokens):
            break
    await events.aclose()


async def test_a_cluster_at_work_records_what_the_catalogue_lists(config):
    report = EndpointConfig(lane="batch", ttft_budget_ms=60_000, itl_budget_ms=60_000)
    config = replace(config, endpoints={**config.endpoints, "report": report})
    with recorded() as page:
        async with cluster(config) as local:
            for number in range(4):
                await ask(local, number + 1)
            await ask(local, 9, tenant="acme", endpoint="report")
            await abandon(local)
            with contextlib.suppress(NotFound):
                await ask(local, 1, endpoint="nonsense")
            await eventually(lambda: page.value("tandem_time_to_cancel_seconds_count"))
            for replica in local.replicas:
                replica.load()
        check_names_and_labels(page)
        check_requests(page)
        check_that_stages_add_up(page)


def check_names_and_labels(page: Recorded) -> None:
    for metric in all_metrics():
        if metric.name in ONLY_THEN or metric.name == "tandem_refused_total":
            continue
        for name, labels in samples(metric).items():
            found = [set(series) for series, _ in page.series(name)]
            assert found, name
            assert all(series == set(labels) for series in found), name
            # A series without labels is there from the start.
            if name.endswith(("_total", "_count")) and metric.name not in NOT_YET:
                assert page.value(name), f"{name} was never counted"


def check_requests(page: Recorded) -> None:
    chat = {"endpoint": "chat", "lane": "interactive", "tenant": "default"}
    # There are no keys, so the given name has no label of its own.
    batch = {"endpoint": "report", "lane": "batch", "tenant": "default"}
    assert page.value("tandem_requests_total", outcome="ok", **chat) == 4
    assert page.value("tandem_requests_total", outcome="ok", **batch) == 1
    assert page.value("tandem_requests_total", outcome="cancelled") == 1
    assert page.value("tandem_requests_total", outcome="NotFound", endpoint="other") == 1
    assert page.value("tandem_front_end_errors_total", front_end="grpc", error="NotFound") == 1
    assert page.value("tandem_ttft_seconds_count", **chat) == 5
    assert page.value("tandem_ttft_budget_ratio_count") == 5
    assert page.value("tandem_request_seconds_count") == 5
    assert page.value("tandem_prompt_tokens_total", **batch) == 100
    assert page.value("tandem_answer_tokens_total", **batch) == 6
    assert page.value("tandem_inter_token_latency_seconds_count", **batch) == 1
    assert page.value("tandem_prefill_tokens_total") > 0
    assert page.value("tandem_kv_transfers_total", outcome="committed") >= 5
    assert page.value("tandem_kv_transfer_bytes_total") > 0
    assert page.value("tandem_decode_inter_token_latency_seconds_count") >= 5 * 4
    assert page.value("tandem_replicas", role="prefill") == 1
    assert page.value("tandem_replicas_joined_total", role="decode") == 1


def check_that_stages_add_up(page: Recorded) -> None:
    stages = ("queue", "prefill", "first_flush")
    whole = sum(page.value("tandem_stage_seconds_sum", stage=stage) for stage in stages)
    assert abs(whole - page.value("tandem_ttft_seconds_sum")) < 0.01


async def test_refusals_are_counted_once_with_their_reason(config, caplog):
    tight = EndpointConfig(ttft_budget_ms=60_000, itl_budget_ms=60_000)
    config = replace(
        config,
        endpoints={"chat": tight},
        router=replace(config.router, max_requests=1),
    )
    with recorded() as page, caplog.at_level(logging.INFO, "cluster.telemetry.request_log"):
        async with cluster(config) as local:
            began_s = time.monotonic()
            await ask(local, 1)
            events = local.client.generate([7] * 100, max_tokens=900, ignore_eos=True)
            await anext(events)
            with pytest.raises(Overloaded) as refused:
                await ask(local, 2, request_id="late")
            passed_s = time.monotonic() - began_s
            await events.aclose()
        assert page.value("tandem_refused_total", reason="router_full", endpoint="chat") == 1
        assert page.value("tandem_refused_total") == 1
        assert page.value("tandem_requests_total", outcome="Overloaded", endpoint="chat") == 1
    rows = [record for record in caplog.records if record.name == "cluster.telemetry.request_log"]
    (row,) = (row for row in rows if row.request_id == "late")
    assert (row.endpoint, row.tenant, row.outcome) == ("chat", "default", "Overloaded")
    assert "the most there may" in row.reason
    # One runs, so there is capacity when it has stayed as long as the one before.
    (before,) = (row for row in rows if row.outcome == "ok")
    wait_s = refused.value.retry_after_s
    assert wait_s != 1.0 and max(0.05, before.total_s) <= wait_s <= max(0.05, passed_s)


async def test_a_full_router_tells_the_batch_lane_when_it_has_capacity_for_it(config, monkeypatch):
    """More must end for it, as it may fill three quarters; refused requests are not counted."""
    asked, ended = [], []

    class Noted(RouterCapacity):
        def wait_s(self, choices, running, now, beyond=0):
            asked.append((choices, running, beyond))
            return super().wait_s(choices, running, now, beyond)

        def ended(self, stayed_s):
            ended.append(stayed_s)

    monkeypatch.setattr("cluster.router.running_requests.RouterCapacity", Noted)
    config = replace(
        config,
        endpoints={**config.endpoints, "report": replace(config.endpoints["chat"], lane="batch")},
        router=replace(config.router, max_requests=8),
    )
    async with cluster(config) as local:
        events = local.client.generate([7] * 100, n=7, max_tokens=600, ignore_eos=True)
        while not isinstance(await anext(events), Tokens):
            pass
        with pytest.raises(Overloaded):
            await ask(local, 2, endpoint="report")
        with pytest.raises(Overloaded):
            await ask(local, 3, n=2)
        await events.aclose()
        await eventually(lambda: len(ended) == 1)
        with pytest.raises(InvalidRequest):
            await local.client.complete([7] * 100, top_p=1.5)
        await ask(local, 5)
        await eventually(lambda: len(ended) == 2)
    assert len(ended) == 2
    assert asked == [(1, 7, 1), (2, 7, 0)]


async def test_scored_tokens_are_counted(config):
    with recorded() as page:
        async with cluster(config) as local:
            await local.client.score([list(range(5, 40))])
    assert page.value("tandem_scored_tokens_total") == 34
