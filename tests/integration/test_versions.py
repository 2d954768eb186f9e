"""Two versions of an application in one directory: neither gets the other's work or its KV."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from cluster.discovery.redis_directory import Directory
from tests import tiny
from tests.integration.local import cluster
from tests.integration.test_prefixes import ask, expected

PROMPTS = [[number * step % 256 for number in range(40)] for step in (3, 5, 7, 11, 13, 17)]


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def other_model(other_folder):
    """The same shape and name, with other weights: KV of one would pass for the other's."""
    return tiny.make(other_folder, initializer_range=0.27)


async def members(config):
    directory = Directory.of(config)
    try:
        return {record.id for record in await directory.members()}
    finally:
        await directory.close()


async def crowd(local):
    return await asyncio.gather(*(ask(local, prompt, max_tokens=12) for prompt in PROMPTS * 2))


async def test_each_router_serves_its_own_weights_only(config, model, other_model, other_folder):
    other = replace(config, model=replace(config.model, path=str(other_folder)))
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(cluster(config, "old-"))
        new = await stack.enter_async_context(cluster(other, "new-"))
        assert len(await members(config)) == 6
        for answers, name, reference in zip(
            await asyncio.gather(crowd(old), crowd(new)),
            ("old-", "new-"),
            (model, other_model),
            strict=True,
        ):
            for prompt, (tokens, summary) in zip(PROMPTS * 2, answers, strict=True):
                assert summary.prefill_replica.startswith(name)
                assert summary.decode_replica.startswith(name)
                assert tokens == expected(reference, prompt, 12)


async def test_a_pair_has_one_layout_where_the_block_size_changes(config, model):
    """Either router may give work to both versions, as their weights are the same."""
    other = replace(config, kv=replace(config.kv, block_size=32, blocks=200))
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(cluster(config, "old-"))
        await stack.enter_async_context(cluster(other, "new-"))
        pairs = set()
        for prompt, (tokens, summary) in zip(PROMPTS * 2, await crowd(old), strict=True):
            pairs.add((summary.prefill_replica[:4], summary.decode_replica[:4]))
            assert tokens == expected(model, prompt, 12)
        assert pairs <= {("old-", "old-"), ("new-", "new-")}


async def test_namespaces_know_nothing_of_each_other(config):
    """With the same ids, too."""
    other = replace(config, directory=replace(config.directory, namespace="v2"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster(config))
        await stack.enter_async_context(cluster(other))
        assert await members(config) == await members(other)
        await stack.enter_async_context(cluster(other, "more-"))
        assert await members(other) > await members(config)
