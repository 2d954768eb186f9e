"""The rows of requests that ended: their times, what they waited for, and who may read them.

`tests/conftest.py` checks of each row that its stages add up.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest
import zstandard

from cluster.api import Tokens
from cluster.cli.waterfall import explained
from cluster.client.admin_client import list_requests
from cluster.config.request_log import RequestLogConfig
from cluster.telemetry.requests.row import RequestRow, faults_of
from cluster.telemetry.requests.stages import stages_of
from engine.errors import InvalidRequest, NotFound, Overloaded, Unauthenticated
from protos.router_pb2 import ListRequestsRequest
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, LocalCluster, cluster, slow_steps
from tests.metrics_page import recorded
from tests.served_rows import faults_told

PROMPT = [3] * 300


def row_of(local: LocalCluster, request_id: str) -> RequestRow:
    (row,) = (row for row in local.router.requests.store if row.request_id == request_id)
    return row


async def test_a_row_has_the_life_of_its_request(config):
    with recorded() as page:
        async with cluster(config) as local:
            await local.client.complete(PROMPT, max_tokens=9, ignore_eos=True, request_id="whole")
            row = row_of(local, "whole")
    (choice,) = row.choices
    assert (row.endpoint, row.tenant, row.lane) == ("chat", "default", "interactive")
    assert (row.outcome, row.prompt_tokens, row.completion_tokens) == ("ok", 300, 9)
    assert (row.prompt, row.answer, row.cost) == (None, None, None)
    assert (choice.route, choice.prefill_replica, choice.decode_replica) == (
        *("handed_over", "prefill-0", "decode-0"),
    )
    assert choice.ttft_s <= choice.ttlt_s <= row.total_s
    assert 0 < choice.transfer_bytes == page.value("tandem_kv_transfer_bytes_total")
    assert choice.offered_s <= choice.decode_admitted_s <= choice.transfer_end_s <= choice.ttlt_s
    assert choice.itl_p50_s <= choice.itl_p95_s <= choice.longest_stall_s
    assert choice.tokens_per_s > 0
    assert (choice.mean_batch, choice.straggler_share) == (1, 0)
    assert choice.decode_waited_for == "nothing"
    assert choice.share_s == pytest.approx(8 / choice.scheduler_tokens_per_s)
    stages = [one.stage for one in stages_of(choice)]
    assert stages[:4] == ["admission", "prefill_queue", "prefill", "first_flush"]
    assert "decode" in stages


async def test_decode_computes_no_handed_over_prompt_again(config):
    with recorded() as page:
        async with cluster(config) as local:
            await asyncio.gather(
                *(
                    local.client.complete([token] * 300, max_tokens=9, ignore_eos=True)
                    for token in range(3, 9)
                )
            )
            rows = list(local.router.requests.store)
    assert {choice.route for row in rows for choice in row.choices} == {"handed_over"}
    assert not any(choice.recomputed_tokens for row in rows for choice in row.choices)
    assert page.value("tandem_decode_recomputed_tokens_total") == 0
    assert page.value("tandem_prefill_tokens_total", pool="decode") == 0
    assert page.value("tandem_prefill_tokens_total", pool="prefill") == 6 * 300


async def test_each_choice_has_its_own_times(config):
    async with cluster(config) as local:
        options = {"max_tokens": 40, "ignore_eos": True, "n": 3}
        await local.client.complete(PROMPT, request_id="three", **options)
        row = row_of(local, "three")
        asked = ListRequestsRequest(choices=True)
        (listed,) = await list_requests(local.router.grpc_address, asked, OPERATOR_KEY)
    assert [choice.choice for choice in row.choices] == [0, 1, 2]
    assert [one["choice"] for one in listed["choices"]] == [0, 1, 2]
    assert listed["ttlt_s"] == pytest.approx(max(one.ttlt_s for one in row.choices), abs=1e-6)
    assert listed["ttft_s"] == pytest.approx(max(one.ttft_s for one in row.choices), abs=1e-6)
    assert not faults_told(json.dumps([listed]))
    assert {choice.completion_tokens for choice in row.choices} == {40}
    assert any(choice.mean_batch > 1 for choice in row.choices)


async def test_the_times_come_with_the_answer_where_they_are_asked_for(config):
    async with cluster(config) as local:
        answer = await local.client.complete(
            PROMPT, max_tokens=5, ignore_eos=True, n=2, timing=True, request_id="timed"
        )
        plain = await local.client.complete(PROMPT, max_tokens=5, ignore_eos=True)
        row = row_of(local, "timed")
    assert not any(choice.stages for choice in plain.summary.choices)
    for choice, found in zip(answer.summary.choices, row.choices, strict=True):
        assert choice.stages == stages_of(found)
        assert choice.stages[-1].end_s == pytest.approx(found.ttlt_s)


async def test_rows_have_texts_costs_and_files_where_the_operator_wants_them(config, tmp_path):
    log = RequestLogConfig(folder=str(tmp_path / "rows"), texts=True, decode_price=3600.0)
    async with cluster(replace(config, request_log=log)) as local:
        # Some tokens have no text, and five that are drawn may have none at all.
        options = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
        await local.client.complete([3] * 9, request_id="one", **options)
        row = row_of(local, "one")
    assert row.prompt and row.answer
    assert row.cost == pytest.approx(row.choices[0].share_s)
    (packed,) = (tmp_path / "rows").iterdir()
    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as plain:
        (line,) = plain.read().decode().splitlines()
    assert json.loads(line)["request_id"] == "one"
    assert json.loads(line)["prompt"] == row.prompt


@pytest.mark.parametrize("prefill_replicas", [1, 0])
async def test_all_rows_together_cost_no_more_than_their_replicas(config, prefill_replicas):
    """Each replica costs 1 a second here. Prompts share passes, and decode shares steps."""
    prices = RequestLogConfig(prefill_price=3600.0, decode_price=3600.0)
    prefill = replace(config.prefill, replicas=prefill_replicas)
    async with cluster(replace(config, request_log=prices, prefill=prefill)) as local:
        begun_s = time.monotonic()
        await asyncio.gather(
            *(
                local.client.complete([token] * 60, max_tokens=12, ignore_eos=True, n=3)
                for token in range(3, 9)
            )
        )
        passed_s = time.monotonic() - begun_s
        rows = list(local.router.requests.store)
    prompts_s = sum(choice.prefill_share_s for row in rows for choice in row.choices)
    steps_s = sum(choice.share_s for row in rows for choice in row.choices)
    assert min(prompts_s, steps_s) > 0
    if prefill_replicas:
        assert max(prompts_s, steps_s) <= passed_s
    else:
        assert prompts_s + steps_s <= passed_s
    assert sum(row.cost for row in rows) == pytest.approx(prompts_s + steps_s)
    # The times of the prompts themselves overlap, because they share passes.
    assert prompts_s < 0.9 * sum(choice.prefill_s for row in rows for choice in row.choices)


async def test_what_runs_has_a_row_as_far_as_it_came(config):
    asked = ListRequestsRequest(request_id="on")
    async with cluster(config) as local:
        events = local.client.generate(PROMPT, max_tokens=2000, ignore_eos=True, request_id="on")
        async for event in events:
            if isinstance(event, Tokens) and event.index > 3:
                break
        (row,) = local.router.requests.store.running()
        (told,) = await list_requests(local.router.grpc_address, asked, OPERATOR_KEY)
        await events.aclose()
        await local.idle()
        await eventually(lambda: not local.router.requests.store.running())
    assert (row.request_id, row.outcome, row.total_s, row.prompt_tokens) == (
        *("on", "running", None, 300),
    )
    (choice,) = row.choices
    assert 0 < choice.queue_s < choice.ttft_s
    assert (choice.prefill_replica, choice.decode_replica) == ("prefill-0", "decode-0")
    assert choice.ttlt_s is None, "its last token has not come"
    assert not faults_of(row)
    assert stages_of(choice)[-1].stage == "decode"
    text = explained(told)
    assert text.startswith("request on: running; endpoint chat")
    assert "still running; 300 prompt tokens, " in text
    assert " so far\n" in text and "- Its decode goes on, for " in text
    assert "TTLT" not in text and "-0.0" not in text and "got no token" not in text


async def test_a_prompt_that_decode_computes_itself_has_no_transfer(config):
    config = replace(config, prefill=replace(config.prefill, replicas=0))
    async with cluster(config) as local:
        await local.client.complete(PROMPT, max_tokens=5, ignore_eos=True, request_id="here")
        (choice,) = row_of(local, "here").choices
    assert (choice.route, choice.prefill_replica) == ("local", choice.decode_replica)
    assert choice.transfer_bytes is None
    assert choice.recomputed_tokens == 0


async def test_a_cancelled_request_tells_when_its_replicas_were_free_and_what_it_cost(config):
    prices = RequestLogConfig(decode_price=3600.0)
    async with cluster(replace(config, request_log=prices)) as local:
        events = local.client.generate(PROMPT, max_tokens=2000, ignore_eos=True, request_id="gone")
        async for event in events:
            if isinstance(event, Tokens) and event.index > 3:
                break
        await events.aclose()
        await local.idle()
        await eventually(lambda: len(local.router.requests.store) == 1)
        await eventually(lambda: row_of(local, "gone").time_to_cancel_s is not None)
        row = row_of(local, "gone")
    assert (row.outcome, row.failed) == ("cancelled", True)
    assert row.completion_tokens > 3
    assert row.choices[0].ttlt_s <= row.total_s
    assert 0 < row.time_to_cancel_s < 5
    # Its steps cost as those of a request that ends well.
    (choice,) = row.choices
    assert 0 < choice.share_s <= row.total_s
    assert row.cost == pytest.approx(choice.share_s)


async def test_one_token_is_handed_over_to_nobody(config):
    async with cluster(config) as local:
        await local.client.complete(PROMPT, max_tokens=1, request_id="first")
        (choice,) = row_of(local, "first").choices
    assert (choice.route, choice.decode_replica) == ("prefill_only", "")


async def test_a_refused_request_tells_what_it_waited_for(config):
    endpoint = replace(config.endpoints["chat"], ttft_budget_ms=2000, max_output_tokens=4000)
    config = replace(config, kv=replace(config.kv, blocks=20), endpoints={"chat": endpoint})
    async with cluster(config) as local:
        slow_steps(local.decode, 0.03)  # the blocks are free in 6 s at the earliest
        events = local.client.generate([3] * 100, max_tokens=200, ignore_eos=True)
        await anext(events)
        with pytest.raises(Overloaded):
            await local.client.complete([4] * 100, max_tokens=200, request_id="late")
        await events.aclose()
        row = row_of(local, "late")
    assert (row.outcome, row.waited_for, row.queued_before) == ("Refused", "kv_blocks", 0)
    assert row.refused_for == "kv_blocks"
    assert row.retry_after_s > 0
    assert row.decided_s <= row.total_s
    assert not row.choices


async def test_operators_alone_list_rows_and_within_bounds(config, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TANDEM_OPERATOR_KEY", raising=False)
    async with cluster(config) as local:
        await local.client.complete(PROMPT, max_tokens=3, ignore_eos=True, request_id="one")
        with pytest.raises(NotFound):
            await local.client.complete([3], endpoint="nonsense", request_id="bad")
        address = local.router.grpc_address

        async def ids(**wanted: object) -> list[str]:
            rows = await list_requests(address, ListRequestsRequest(**wanted), OPERATOR_KEY)
            return [row["request_id"] for row in rows]

        assert await ids() == ["bad", "one"]
        assert await ids(limit=1) == ["bad"]
        assert await ids(slowest=True) == ["one", "bad"]
        assert await ids(failed=True) == ["bad"]
        assert await ids(endpoint="chat") == ["one"]
        assert await ids(since_s=600.0) == ["bad", "one"]
        (row,) = await list_requests(address, ListRequestsRequest(request_id="one"), OPERATOR_KEY)
        assert row["choices"][0]["stages"][0]["stage"] == "admission"
        assert row["behind"] == []
        assert "choice 0 on prefill-0 -> decode-0: TTFT" in explained(row)
        for wrong in ({"limit": 1001}, {"since_s": -1.0}, {"since_s": float("nan")}):
            with pytest.raises(InvalidRequest):
                await ids(**wrong)
        with pytest.raises(InvalidRequest):
            await ids(request_id="no id")
        for key, refusal in ((None, Unauthenticated), ("guess", Unauthenticated)):
            with pytest.raises(refusal):
                await list_requests(address, ListRequestsRequest(), key)
