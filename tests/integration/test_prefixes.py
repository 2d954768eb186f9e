"""Cached prefixes over the whole path: exact, counted, of one tenant, also after eviction."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache

import httpx
import pytest
import torch

from cluster.client.admin_client import request_purge
from cluster.telemetry import router_metrics
from decode_pool import metrics as decode_metrics
from engine import metrics as engine_metrics
from engine.telemetry import install, uninstall
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster, in_use

NEW_TOKENS = 40
PROMPT = [number * 7 % 256 for number in range(100)]


def expected(model, prompt, new_tokens=NEW_TOKENS):
    return list(_generated(model, tuple(prompt), new_tokens))


@cache
def _generated(model, prompt, new_tokens):
    """By the reference, which takes its time, and is asked for the same in several tests."""
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


async def ask(local, prompt, **options):
    """The answer's tokens and the choice's summary."""
    done = await local.client.complete(
        prompt, **{"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, **options}
    )
    return [token.token for token in done.choices[0].tokens], done.summary.choices[0]


def forget_all(replica):
    """Evict everything that is cached."""
    pool = replica.parts.blocks
    pool.allocate("all", pool.total)
    pool.release("all")
    assert pool.counts().cached == 0


async def test_a_second_identical_prompt_is_cached_and_exact(config, model):
    async with cluster(config) as local:
        first, cold = await ask(local, PROMPT)
        second, warm = await ask(local, PROMPT)
        assert (cold.cached_tokens, warm.cached_tokens) == (0, 96)
        assert first == second == expected(model, PROMPT)
        assert local.prefill[0].load().blocks_cached > 0
        await local.idle()


async def test_the_next_turn_of_a_chat_is_served_from_the_decode_replica(config, model):
    config = replace(config, decode=replace(config.decode, replicas=2))
    async with cluster(config) as local:
        prompt = list(PROMPT)
        used = set()
        for turn in range(4):
            tokens, summary = await ask(local, prompt)
            assert tokens == expected(model, prompt)
            if turn:
                assert summary.cached_tokens == (len(prompt) - 6) // 16 * 16
                assert summary.prefill_replica == summary.decode_replica
            else:
                assert summary.prefill_replica == "prefill-0"
            parts = summary.queue_s + summary.prefill_s + summary.first_flush_s
            assert parts == pytest.approx(summary.ttft_s)
            assert min(summary.queue_s, summary.prefill_s, summary.first_flush_s) >= 0
            used.add(summary.decode_replica)
            prompt += [*tokens, 1, 2, 3, 4, 5]
        assert len(used) == 1
        await local.idle()


async def test_a_replica_that_has_evicted_the_chat_still_serves_it(config, model):
    async with cluster(config) as local:
        tokens, _ = await ask(local, PROMPT)
        prompt = [*PROMPT, *tokens, 9]
        forget_all(local.decode[0])
        again, summary = await ask(local, prompt)
        assert again == expected(model, prompt)
        assert summary.prefill_replica == "decode-0"
        assert summary.cached_tokens == 0
        one, summary = await ask(local, [*prompt, *again, 9], max_tokens=1)
        assert one == expected(model, [*prompt, *again, 9], 1)
        assert summary.cached_tokens == (len(prompt) + NEW_TOKENS - 1) // 16 * 16
        await local.idle()


async def test_no_tenant_shares_with_another(config, model):
    async with cluster(config) as local:
        answers = [await ask(local, PROMPT, tenant=name) for name in ("a", "b", "a", "b")]
        assert [summary.cached_tokens for _, summary in answers] == [0, 0, 96, 96]
        tokens = answers[0][0]
        assert all(other == tokens for other, _ in answers)
        turn = [*PROMPT, *tokens, 5]
        _, foreign = await ask(local, turn, tenant="c")
        assert foreign.cached_tokens == 0
        assert foreign.prefill_replica == "prefill-0"
        _, own = await ask(local, turn, tenant="a")
        assert own.cached_tokens > len(PROMPT)


async def test_a_purge_takes_the_cached_kv_of_one_tenant_and_overwrites_it(config):
    async with cluster(config) as local:
        kept = {name: (await ask(local, PROMPT, tenant=name))[0] for name in ("a", "b")}
        await local.idle()
        answer = await request_purge(local.router.grpc_address, "a", OPERATOR_KEY)
        assert dict(answer.blocks) == {"prefill-0": 6, "decode-0": answer.blocks["decode-0"]}
        assert answer.blocks["decode-0"] >= 6 and not answer.failed
        await eventually(lambda: not any(in_use(replica) for replica in local.replicas))
        cache = local.prefill[0].parts.model.engine.cache
        used = sum(bool(cache.layers[0][:, block].any()) for block in range(cache.blocks))
        assert used == 7  # those of b, with the last one of its prompt
        for name, cached in (("a", 0), ("b", 96)):
            tokens, summary = await ask(local, PROMPT, tenant=name)
            assert (tokens, summary.cached_tokens) == (kept[name], cached)


@pytest.mark.parametrize("off", ["cache", "local"])
async def test_it_can_be_switched_off(config, model, off):
    if off == "cache":
        config = replace(config, kv=replace(config.kv, prefix_cache=False))
    else:
        config = replace(config, prefill=replace(config.prefill, local_prefill_tokens=0))
    async with cluster(config) as local:
        tokens, _ = await ask(local, PROMPT)
        again, second = await ask(local, [*PROMPT, *tokens, 9])
        assert again == expected(model, [*PROMPT, *tokens, 9])
        assert second.prefill_replica == "prefill-0"
        assert second.cached_tokens == (0 if off == "cache" else 96)


async def test_a_crowd_shares_a_prefix_through_preemption_and_eviction(config, model):
    """Chats of several turns at once over pools that are too small for all of them."""
    config = replace(
        config,
        kv=replace(config.kv, blocks=40),
        router=replace(config.router, kv_overcommit=100.0),
        prefill=replace(config.prefill, chunk_tokens=64),
    )
    async with cluster(config) as local:

        async def chat(number):
            prompt = [*PROMPT[:70], number, *range(number * 3)]
            cached = preempted = 0
            for _ in range(3):
                tokens, summary = await ask(local, prompt)
                assert tokens == expected(model, prompt)
                cached += summary.cached_tokens
                preempted += summary.preemptions
                prompt = [*prompt, *tokens, number]
            return cached, preempted

        chats = await asyncio.gather(*(chat(number) for number in range(8)))
        assert all(cached for cached, _ in chats)
        assert sum(preempted for _, preempted in chats) > 0
        assert sum(replica.parts.blocks.evictions for replica in local.replicas) > 0
        await local.idle()
        for replica in local.replicas:
            counts = replica.parts.blocks.counts()
            assert counts.free + counts.cached == counts.total


class Counts:
    """A backend that adds up counters."""

    def __init__(self):
        self.values = {}

    def attach(self, metric):
        def add(value, labels):
            key = (metric.name, *labels)
            self.values[key] = self.values.get(key, 0) + value

        return add


async def test_hits_are_counted_by_pool(config):
    counts = Counts()
    install(counts)
    try:
        async with cluster(config) as local:
            tokens, first = await ask(local, PROMPT)
            _, again = await ask(local, PROMPT)
            turn = [*PROMPT, *tokens, 9]
            _, next_turn = await ask(local, turn)
            forget_all(local.decode[0])
            local.decode[0].load()
    finally:
        uninstall(counts)
    assert first.prefill_replica == "prefill-0"
    assert [one.cached_tokens for one in (first, again, next_turn)] == [0, 96, 128]
    # The repeated prompt is cached in both pools, so either may have computed the rest of it.
    looked_up, hit = Counter(), Counter()
    for prompt, one in ((PROMPT, first), (PROMPT, again), (turn, next_turn)):
        pool = one.prefill_replica.split("-")[0]
        looked_up[pool] += len(prompt)
        hit[pool] += one.cached_tokens
    for pool in ("prefill", "decode"):
        lookups = counts.values[engine_metrics.PREFIX_LOOKUP_TOKENS.name, pool]
        hits = counts.values.get((engine_metrics.PREFIX_HIT_TOKENS.name, pool), 0)
        assert (lookups, hits) == (looked_up[pool], hit[pool])
    assert counts.values[engine_metrics.PREFIX_EVICTIONS.name, "decode"] > 0
    computed_locally = [one for one in (again, next_turn) if one.prefill_replica == "decode-0"]
    assert next_turn in computed_locally
    assert counts.values[decode_metrics.LOCAL_PREFILLS.name,] == len(computed_locally)
    assert counts.values[router_metrics.GENERATED.name,] == 3 * NEW_TOKENS


@pytest.mark.parametrize("prefill_replicas", [1, 0])
async def test_warm_prefixes_are_cached_before_the_first_request(
    config, model, caplog, prefill_replicas
):
    config = replace(config, prefill=replace(config.prefill, replicas=prefill_replicas))
    prefix = "You are a patient and exact assistant. "
    texts = (prefix, "short", "x" * 100_000, "x" * 2000)
    caplog.set_level("INFO", logger="cluster.replica.prefix_warmup")
    async with cluster(
        replace(config, kv=replace(config.kv, blocks=100, warm_prefixes=texts))
    ) as local:
        await local.replicas[0].warmed()
        tokens, summary = await ask(local, prefix + "What is KV?")
        assert summary.cached_tokens == 32
        assert tokens == expected(model, _ids(local, prefix + "What is KV?"))
        _, foreign = await ask(local, prefix + "What is KV?", tenant="other")
        assert foreign.cached_tokens == 0
        await local.idle()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "kv.warm_prefixes[0] is cached: 39 tokens"
    assert "[1] was not computed: it has 5 tokens; a block has 16" in messages[1]
    assert "[2] was not computed: it has 100000 tokens" in messages[2]
    assert "[3] was not computed:" in messages[3]
    assert "125 KV blocks" in messages[3]


def _ids(local, text):
    return local.replicas[0].parts.model.tokenizer.encode(text)


async def test_a_chat_over_http_says_what_was_cached(config):
    async with cluster(config) as local:
        messages = [{"role": "user", "content": "What is a prefix cache? " * 4}]
        url = f"http://{local.router.http_address}/v1/chat/completions"
        first = await asyncio.to_thread(_post, url, messages)
        second = await asyncio.to_thread(_post, url, messages)
        foreign = await asyncio.to_thread(_post, url, messages, {"X-Tandem-Tenant": "other"})
        cached = [
            reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            for reply in (first, second, foreign)
        ]
        assert cached[0] == cached[2] == 0
        assert 0 < cached[1] < second["usage"]["prompt_tokens"]


def _post(url, messages, headers=None):
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    return httpx.post(url, json=body, headers=headers, timeout=30).json()
