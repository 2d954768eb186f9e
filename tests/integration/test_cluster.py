"""The whole path in one process: exact, bounded, cancellable, and clear about bad input."""

import asyncio
import logging
from dataclasses import replace

import pytest
import torch

from cluster.api import GenerateRequest, Started, Summary, TokenPrompt, Tokens
from cluster.config.endpoints import EndpointConfig
from cluster.config.version import config_version
from cluster.replica import assembly
from decode_pool.scheduler import DecodeScheduler
from engine.errors import (
    Cancelled,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    PromptTooLong,
)
from kv_transfer.sender import HandOver
from prefill_pool import loop
from tests import exactness, tiny
from tests.integration.local import LocalCluster, cluster, in_use, slow_steps


def small_pool(config, blocks, **prefill):
    """A pool in which requests get in each other's way."""
    return replace(
        config,
        kv=replace(config.kv, blocks=blocks),
        router=replace(config.router, kv_overcommit=100.0),
        prefill=replace(config.prefill, chunk_tokens=64, **prefill),
    )


async def answer(local: LocalCluster, case: exactness.Case) -> tuple[tuple[int, ...], int]:
    """The tokens of a case and how often it was preempted."""
    tokens: list[int] = []
    preemptions = 0
    options = {
        name: getattr(case.sampling, name)
        for name in ("max_tokens", "temperature", "ignore_eos", "stop_token_ids", "seed", "top_p")
    }
    async for event in local.client.generate(list(case.prompt), **options):
        if isinstance(event, Tokens):
            assert event.index == len(tokens)
            tokens += [token.token for token in event.tokens]
        elif isinstance(event, Summary):
            preemptions = sum(choice.preemptions for choice in event.choices)
    return tuple(tokens), preemptions


async def crowd(local, cases, at_once):
    """The answers to the cases; an error of a request names its case."""
    slots = asyncio.Semaphore(at_once)

    async def one(number, case):
        async with slots:
            try:
                return await answer(local, case)
            except Exception as error:
                error.add_note(f"case {number}, prompt of {len(case.prompt)}")
                raise

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one(*each)) for each in enumerate(cases)]
    return [task.result() for task in asked]


@pytest.mark.parametrize("prefill_replicas", [1, 0])
async def test_exact_in_a_crowd_with_preemption(config, model, prefill_replicas):
    cases = [case for case in exactness.make_cases(model, 40) if len(case.prompt) < 400]
    async with cluster(small_pool(config, 60, replicas=prefill_replicas)) as local:
        answers = await crowd(local, cases, 12)
        await local.idle()
    assert not exactness.differences(model, cases, [got for got, _ in answers])
    assert sum(preemptions for _, preemptions in answers) > 0


async def test_exact_when_kv_leaves_before_its_prompt_is_computed(config, model, monkeypatch):
    """Chunks of 32 tokens cut behind each layer, a frame per few blocks: most leaves early."""
    granted, sent, cut = [], [], []
    grant_early, reached = DecodeScheduler.grant_early, HandOver.reached

    def count_grants(scheduler, sequence):
        granted.append(grant_early(scheduler, sequence))
        return granted[-1]

    def count_progress(handing, tokens, layers=None):
        reached(handing, tokens, layers)
        if handing._outgoing.first_token is None:
            sent.append(handing._outgoing.next_part)
            cut.append(layers)

    monkeypatch.setattr(DecodeScheduler, "grant_early", count_grants)
    monkeypatch.setattr(HandOver, "reached", count_progress)
    monkeypatch.setattr(loop, "_SLICE_S", 0.0)
    monkeypatch.setattr(assembly, "frame_bytes_for", lambda device: 1 << 14)
    cases = [case for case in exactness.make_cases(model, 40) if len(case.prompt) > 100][:8]
    small = replace(config, prefill=replace(config.prefill, chunk_tokens=32))
    async with cluster(small) as local:
        answers = await crowd(local, cases, 3)
        await local.idle()
    assert not exactness.differences(model, cases, [got for got, _ in answers])
    assert any(granted)
    assert max(sent) > 1
    assert set(cut) > {None, 1}


async def test_sampling_is_the_same_alone_and_in_a_crowd(config, model):
    cases = [
        replace(
            case,
            sampling=replace(case.sampling, temperature=1.0, top_p=0.9, seed=number, max_tokens=24),
        )
        for number, case in enumerate(exactness.make_cases(model, 30)[:12])
    ]
    async with cluster(config) as local:
        together = await crowd(local, cases, len(cases))
        alone = [await answer(local, case) for case in cases[:6]]
    assert [tokens for tokens, _ in together[:6]] == [tokens for tokens, _ in alone]


async def test_choices_differ_and_stage_times_add_up(config):
    prefill = replace(config.prefill, local_prefill_tokens=0)
    async with cluster(replace(config, prefill=prefill)) as local:
        events = [
            event
            async for event in local.client.generate(
                "hello", n=3, max_tokens=8, seed=5, ignore_eos=True
            )
        ]
    assert isinstance(events[0], Started)
    summary = events[-1]
    assert summary.completion_tokens == 24
    texts = {
        choice: tuple(
            token.token
            for event in events
            if isinstance(event, Tokens) and event.choice == choice
            for token in event.tokens
        )
        for choice in range(3)
    }
    assert len(set(texts.values())) == 3
    for choice in summary.choices:
        parts = choice.queue_s + choice.prefill_s + choice.first_flush_s
        assert parts == pytest.approx(choice.ttft_s)
        assert min(choice.queue_s, choice.prefill_s, choice.first_flush_s) >= 0
        assert (choice.prefill_replica, choice.decode_replica) == ("prefill-0", "decode-0")


def requests_at_each_step(replica) -> list[int]:
    """How many requests the replica has, waiting or running, before each step of its batch."""
    worker, counts = replica.parts.worker, []
    step = worker.step

    async def counted(*arguments, **named):
        load = replica.load()
        counts.append(load.waiting + load.running)
        return await step(*arguments, **named)

    worker.step = counted
    return counts


async def test_no_request_is_admitted_without_a_slot_in_the_decode_batch(config):
    """A request that finds none waits before its first token or is refused, not behind it."""
    # A request is told within 2 s, and those that run have their slots for 4 s.
    chat = EndpointConfig(ttft_budget_ms=4000, itl_budget_ms=60_000)
    decode = replace(config.decode, max_batch=2)
    async with cluster(replace(config, decode=decode, endpoints={"chat": chat})) as local:
        slow_steps(local.decode, 0.02)
        options = {"max_tokens": 200, "ignore_eos": True}
        counts = requests_at_each_step(local.decode[0])
        running = [
            asyncio.create_task(local.client.complete([number + 1] * 30, **options))
            for number in range(6)
        ]
        ended = await asyncio.gather(*running, return_exceptions=True)
        assert 0 < max(counts) <= 2
        refused = [one for one in ended if isinstance(one, Overloaded)]
        assert 0 < len(refused) <= 4
        assert all("no slot for it" in one.message for one in refused)
        assert all(one.retry_after_s > 0 for one in refused)
        others = [one for one in ended if one not in refused]
        assert all(one.summary.completion_tokens == 200 for one in others)


@pytest.mark.parametrize("tokens_seen", [0, 1, 5])
async def test_cancel_frees_everything(config, tokens_seen):
    async with cluster(config) as local:
        events = local.client.generate(
            [1] * 700, max_tokens=1000, ignore_eos=True, request_id="victim"
        )
        seen = 0
        with pytest.raises(Cancelled):
            async for event in events:
                seen += len(event.tokens) if isinstance(event, Tokens) else 0
                if seen >= tokens_seen:
                    assert await local.client.cancel("victim") or seen > tokens_seen
        await local.idle()
        assert not await local.client.cancel("victim")
        again = await local.client.complete("x", max_tokens=3, ignore_eos=True, request_id="victim")
        assert again.summary.completion_tokens == 3


@pytest.mark.parametrize("tokens_seen", [0, 1, 5])
async def test_a_client_that_goes_away_frees_everything(config, tokens_seen):
    async with cluster(config) as local:
        events = local.client.generate([1] * 700, max_tokens=1000, ignore_eos=True)
        seen = 0
        async for event in events:
            seen += len(event.tokens) if isinstance(event, Tokens) else 0
            if seen >= tokens_seen:
                break
        await events.aclose()
        await local.idle()


async def test_bad_input_costs_no_replica_anything(config):
    async with cluster(config) as local:
        for wrong, error in (
            ({"prompt": ""}, InvalidRequest),
            ({"prompt": [1] * 2048}, PromptTooLong),
            ({"prompt": [tiny.VOCABULARY]}, InvalidRequest),
            ({"prompt": "x", "endpoint": "nope"}, NotFound),
            ({"prompt": "x", "model": "nope"}, NotFound),
            ({"prompt": "x", "temperature": float("nan")}, InvalidRequest),
            ({"prompt": "x", "max_tokens": 2**31}, InvalidRequest),
        ):
            prompt = wrong.pop("prompt")
            with pytest.raises(error):
                await local.client.complete(prompt, **wrong)
        assert not any(in_use(replica) for replica in local.replicas)


async def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers(config):
    async with cluster(small_pool(config, 8)) as local:
        with pytest.raises(PromptTooLong, match=r"140 tokens do not fit.*128") as refusal:
            await local.client.complete([1] * 140, max_tokens=1)
        assert refusal.value.field == "prompt"
        for chat, words in (("x" * 140, "do not fit"), ("x" * 3000, "maximum context length")):
            with pytest.raises(PromptTooLong, match=words) as refusal:
                await local.client.complete([{"role": "user", "content": chat}])
            assert refusal.value.field == "messages" and "too long" in refusal.value.message


async def test_max_tokens_is_cut_to_what_the_pool_has(config):
    async with cluster(small_pool(config, 8)) as local:
        for most in (29, 40, 10**6):
            whole = await local.client.complete([1] * 100, max_tokens=most, ignore_eos=True)
            assert whole.summary.completion_tokens == 29


async def test_a_full_router_refuses_and_says_when_to_come_back(config):
    config = replace(config, router=replace(config.router, max_requests=1))
    async with cluster(config) as local:
        events = local.client.generate("x", max_tokens=500, ignore_eos=True)
        await anext(events)
        with pytest.raises(Overloaded) as refusal:
            await local.client.complete("y")
        assert refusal.value.retry_after_s
        await events.aclose()


async def test_more_choices_than_a_router_runs_are_an_error_that_no_wait_mends(config):
    config = replace(config, router=replace(config.router, max_requests=2))
    async with cluster(config) as local:
        with pytest.raises(InvalidRequest, match="at most 2 choices"):
            await local.client.complete("x", n=3, max_tokens=2)
        await local.client.complete("x", n=2, max_tokens=2)


async def test_a_router_that_is_full_of_batch_work_takes_a_chat(config):
    endpoints = config.endpoints | {"report": EndpointConfig(lane="batch")}
    config = replace(config, router=replace(config.router, max_requests=4), endpoints=endpoints)
    async with cluster(config) as local:
        report = {"endpoint": "report", "max_tokens": 500, "ignore_eos": True}
        batch = [local.client.generate("x", **report) for _ in range(3)]
        for events in batch:
            await anext(events)
        with pytest.raises(Overloaded, match="3 requests run here") as refusal:
            await local.client.complete("y", **report)
        assert refusal.value.retry_after_s
        await local.client.complete("y", max_tokens=4)
        for events in batch:
            await events.aclose()


async def test_a_lost_replica_ends_its_requests_with_a_retryable_error_where_none_goes_on(config):
    router = replace(config.router, failover_timeout_s=0)
    config = replace(config, router=router, decode=replace(config.decode, replicas=2))
    async with cluster(config) as local:
        streams = [local.client.generate("x", max_tokens=1500, ignore_eos=True) for _ in range(4)]
        for events in streams:
            async for event in events:
                if isinstance(event, Tokens) and event.index > 2:
                    break
        lost = local.decode[0].load().running
        await local.decode[0].stop()
        outcomes = await asyncio.gather(*(_drain(s) for s in streams), return_exceptions=True)
        failed = [error for error in outcomes if isinstance(error, BaseException)]
        assert 0 < len(failed) == lost < len(streams)
        assert all(getattr(error, "retryable", False) for error in failed)
        again = await local.client.complete("x", max_tokens=4, ignore_eos=True)
        assert again.summary.choices[0].decode_replica == "decode-1"


async def _drain(events):
    async for _ in events:
        pass


def test_the_reference_is_not_degenerate(model):
    cases = exactness.make_cases(model, 24)
    assert exactness.distinct(cases) >= 20
    assert torch.get_num_threads() == 1


async def test_a_refusal_of_a_replica_reaches_the_client_as_such(config):
    """With one in decode and two waiting, the other requests get a retry time.

    Where batches are formed of waiting requests, the router admits more than the batch has slots.
    """
    decode = replace(config.decode, batching="static", max_batch=1, max_waiting=2)
    async with cluster(replace(config, decode=decode)) as local:
        first = local.client.generate("x", max_tokens=1000, ignore_eos=True)
        async for event in first:
            if isinstance(event, Tokens) and event.index > 2:
                break
        requests = (local.client.complete("x", max_tokens=200, ignore_eos=True) for _ in range(12))
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        await _drain(first)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
        served = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert len(served) >= 2
        assert len(refused) == 12 - len(served) > 0
        assert all(error.retry_after_s for error in refused)
        assert any("are here already" in str(error) for error in refused)
        await local.idle()


async def test_one_token_needs_no_decode_pool(config):
    async with cluster(config) as local:
        done = await local.client.complete("hello", max_tokens=1, ignore_eos=True, n=4)
        assert done.summary.completion_tokens == 4
        assert [choice.finish_reason for choice in done.choices] == ["length"] * 4


async def test_cancel_at_once_is_an_answer(config):
    """A cancel that comes before the request's own task has begun still ends the stream."""
    async with cluster(config) as local:
        router = local.router.router
        assert router is not None
        request = GenerateRequest(TokenPrompt((1,) * 50), request_id="early")
        events = router.generate(request)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert await router.cancel("early", "default")
        with pytest.raises(Cancelled):
            async with asyncio.timeout(30):
                await first
        await local.idle()


async def test_numbers_that_overflow_fail_one_request_alone(config):
    """A replica-side fault of one sequence leaves the rest of its batch alone."""
    async with cluster(config) as local:
        engine = local.decode[0].parts.model.engine
        forward = engine.forward

        def poisoned(spans):
            results = forward(spans)
            for index, span in enumerate(spans):
                if span.sequence.owner.startswith("bad") and len(span.sequence.tokens) > 8:
                    results[index] = Internal("the model's logits are NaN or infinite")
            return results

        engine.forward = poisoned
        names = ("bad", "good-1", "good-2")
        requests = (
            local.client.complete("x", max_tokens=30, ignore_eos=True, request_id=name)
            for name in names
        )
        bad, *good = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(bad, Internal)
        assert "NaN" in bad.message
        assert [done.summary.completion_tokens for done in good] == [30, 30]
        await local.idle()


async def test_every_ended_request_has_a_row_in_the_request_log(config, caplog):
    endpoints = config.endpoints | {"report": config.endpoints["chat"]}
    config = replace(config, endpoints=endpoints)
    with caplog.at_level(logging.INFO, "cluster.telemetry.request_log"):
        async with cluster(config) as local:
            await local.client.complete([1, 2, 3], max_tokens=2, endpoint="report", ignore_eos=True)
            await local.client.complete([1, 2, 3], max_tokens=2, tenant="acme")
            with pytest.raises(NotFound):
                await local.client.complete([1, 2, 3], endpoint="none")
    rows = [record for record in caplog.records if record.name == "cluster.telemetry.request_log"]
    assert {row.config for row in rows} == {config_version(config)}
    ended = [(row.endpoint, row.tenant, row.outcome) for row in rows]
    assert ended == [
        ("report", "default", "ok"),
        ("chat", "default", "ok"),
        ("none", "default", "NotFound"),
    ]
    assert rows[0].completion_tokens == 2
    stages = rows[0].queue_s + rows[0].prefill_s + rows[0].first_flush_s
    assert stages == pytest.approx(rows[0].ttft_s, abs=2e-6)  # each is rounded to 1 us
