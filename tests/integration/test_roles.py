"""Replicas change roles while they work: nothing is dropped, and nothing comes out different."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from cluster.api import Tokens
from cluster.client.admin_client import fetch_status, request_role
from cluster.router import admin_service
from engine.errors import InvalidRequest, NotFound, Unavailable
from tests import exactness
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster
from tests.integration.test_cluster import crowd, small_pool
from tests.integration.test_prefixes import ask, expected

LONG = 300


@pytest.fixture
def config(config):
    """However slow the machine is, no replica leaves the directory for it."""
    return replace(config, directory=replace(config.directory, lease_s=60))


async def roles(local):
    status = await fetch_status(local.router.grpc_address, OPERATOR_KEY)
    return {entry.id: entry.role for entry in status.replicas if entry.role != "router"}


async def give(local, **wanted):
    """Give roles one after the other; the router uses each when it answers."""
    for name, role in wanted.items():
        name = name.replace("_", "-")
        await request_role(local.router.grpc_address, name, role, OPERATOR_KEY)
        known = await roles(local)
        assert known.get(name) == role, f"{name} should be {role} in {known}"


async def read(events, into):
    async for event in events:
        if isinstance(event, Tokens):
            into += [token.token for token in event.tokens]


async def test_streams_outlive_every_change_of_role(config, model):
    config = replace(config, decode=replace(config.decode, replicas=2))
    prompts = [[number * step % 256 for number in range(60 + step)] for step in (3, 7, 11, 13)]
    options = {"max_tokens": LONG, "temperature": 0, "ignore_eos": True}
    async with cluster(config) as local:
        got = [[] for _ in prompts]
        streams = [
            asyncio.create_task(read(local.client.generate(prompt, **options), into))
            for prompt, into in zip(prompts, got, strict=True)
        ]
        await eventually(lambda: min(map(len, got)) >= 3)
        await give(local, decode_1="prefill")
        await give(local, prefill_0="decode")
        tokens, summary = await ask(local, [5, 6, 7] * 20)
        assert (summary.prefill_replica, tokens) == ("decode-1", expected(model, [5, 6, 7] * 20))
        await give(local, decode_1="both", prefill_0="prefill", decode_0="both")
        tokens, summary = await ask(local, [8, 9] * 30)
        assert tokens == expected(model, [8, 9] * 30)
        await give(local, decode_1="decode", decode_0="decode")
        await asyncio.gather(*streams)
        assert got == [expected(model, prompt, LONG) for prompt in prompts]
        await local.idle()


async def test_a_crowd_in_pools_that_are_too_small_while_roles_go_round(config, model):
    """Both loops of a replica then share its few blocks."""
    config = small_pool(config, 60)
    config = replace(config, decode=replace(config.decode, replicas=2))
    cases = [case for case in exactness.make_cases(model, 40) if len(case.prompt) < 400]
    rounds = [
        {"decode_1": "prefill", "prefill_0": "decode"},
        {"decode_0": "both", "decode_1": "decode"},
        {"prefill_0": "prefill", "decode_0": "decode"},
    ]
    async with cluster(config) as local:
        async with asyncio.TaskGroup() as tasks:
            answers = tasks.create_task(crowd(local, cases, 12))
            for changes in itertools.cycle(rounds):
                await give(local, **changes)
                if answers.done():
                    break
        await local.idle()
    assert not exactness.differences(model, cases, [tokens for tokens, _ in answers.result()])


@pytest.mark.parametrize(
    ("name", "role", "error"),
    [
        ("prefill-0", "decode", InvalidRequest),
        ("prefill-0", "router", InvalidRequest),
        ("nobody", "decode", NotFound),
        ("router-0", "decode", NotFound),
    ],
)
async def test_an_impossible_flip_is_refused_and_changes_nothing(config, name, role, error):
    async with cluster(config) as local:
        before = await roles(local)
        with pytest.raises(error):
            await request_role(local.router.grpc_address, name, role, OPERATOR_KEY)
        assert await roles(local) == before


async def test_a_new_role_that_the_router_does_not_see_is_told(config, monkeypatch):
    """A role given next would be judged by roles that replicas no longer have."""

    async def lose(record):
        raise Unavailable("no answer within 1 s")

    config = replace(config, decode=replace(config.decode, replicas=2))
    async with cluster(config) as local:
        with monkeypatch.context() as patched:
            patched.setattr(admin_service, "SEEN_S", 0.1)
            patched.setattr(local.directory, "renew", lose)
            with pytest.raises(Unavailable, match="decode-1 took the role prefill"):
                await request_role(local.router.grpc_address, "decode-1", "prefill", OPERATOR_KEY)
        assert local.decode[1].role == "prefill"

        async def seen():
            return (await roles(local)).get("decode-1") == "prefill"

        await eventually(seen)


async def test_one_replica_that_does_both_may_not_do_less(config):
    async with cluster(replace(config, prefill=replace(config.prefill, replicas=0))) as local:
        with pytest.raises(InvalidRequest, match="prefill"):
            await request_role(local.router.grpc_address, "decode-0", "decode", OPERATOR_KEY)
        load = local.decode[0].load()
        assert (load.prompt_tokens_due, load.streams, load.batch_limit) == (0, 0, 64)
        assert load.prompt_tokens_per_s is None
        await ask(local, [1] * 40)
        load = local.decode[0].load()
        assert load.prompt_tokens_per_s > 0
        assert load.step_s > 0
        assert 0 < load.itl_s <= 0.06
