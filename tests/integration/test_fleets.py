"""A canary fleet by share: two releases of different weights behind the chart's own routes."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from tests import tiny
from tests.helm.chart import objects, one
from tests.integration.local import cluster
from tests.integration.test_prefixes import ask, expected

STABLE, NEXT = "tandem-grpc", "tandem-next-grpc"
TURNS, REQUESTS = 6, 60


class Gateway:
    """What the Gateway API has a gateway do: each call goes to a Service drawn by weight."""

    def __init__(self, services):
        self._services = services
        self._rng = random.Random(3)
        self._weights = {}

    def apply(self, weight):
        """Put the chart's route for such a share in force; calls that run are not moved."""
        fleets = [{"release": "tandem-next", "weight": weight}]
        api = {"enabled": True, "parentRefs": [{"name": "public"}], "fleets": fleets}
        (rule,) = one(objects({"gatewayApi": api}), "GRPCRoute")["spec"]["rules"]
        self._weights = {ref["name"]: ref["weight"] for ref in rule["backendRefs"]}
        assert self._weights.keys() == self._services.keys()

    async def ask(self, prompt, **options):
        """Which Service answered, and its tokens and summary."""
        (name,) = self._rng.choices(list(self._weights), list(self._weights.values()))
        tokens, summary = await ask(self._services[name], prompt, **options)
        return name, tokens, summary


@pytest.fixture(scope="module")
def next_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def references(model, next_folder):
    """Weights of one shape and name: KV of one could be taken for the other's."""
    return {STABLE: model, NEXT: tiny.make(next_folder, initializer_range=0.27)}


@pytest.fixture
def fleets(config, next_folder, references):
    """Both releases, each in the namespace of its own version, in one Redis; and the gateway."""
    changed = replace(config, model=replace(config.model, path=str(next_folder)))

    @asynccontextmanager
    async def start():
        async with AsyncExitStack() as stack:
            services = {}
            for name, own in ((STABLE, config), (NEXT, changed)):
                directory = replace(own.directory, namespace=name)
                release = cluster(replace(own, directory=directory), f"{name}-")
                services[name] = await stack.enter_async_context(release)
            yield Gateway(services)

    return start


async def test_turns_of_a_chat_may_come_from_either_version_and_their_kv_from_one(
    fleets, references
):
    prompt, drawn, cached = [7, 11, 13] * 20, [], 0
    async with fleets() as gateway:
        gateway.apply(50)
        for turn in range(TURNS):
            name, tokens, summary = await gateway.ask(prompt, max_tokens=16)
            assert tokens == expected(references[name], prompt, 16)
            assert summary.prefill_replica.startswith(name)
            assert summary.decode_replica.startswith(name)
            drawn.append(name)
            cached += summary.cached_tokens
            prompt = [*prompt, *tokens, turn, turn + 1]
    assert {*pairwise(drawn)} >= {(STABLE, NEXT), (NEXT, STABLE)}
    assert cached > 0  # each version goes on from what it has itself


async def test_shares_move_under_load_without_a_lost_request(fleets, references):
    prompts = [[number, *range(20)] for number in range(8)]
    wanted = {
        name: [expected(reference, prompt, 8) for prompt in prompts]
        for name, reference in references.items()
    }
    long = [3] * 40
    async with fleets() as gateway:
        shares = {}
        gateway.apply(0)
        running = asyncio.create_task(gateway.ask(long, max_tokens=600))
        for weight in (0, 10, 50, 100, 0):
            gateway.apply(weight)
            places = [number % len(prompts) for number in range(REQUESTS)]
            answers = await asyncio.gather(
                *(gateway.ask(prompts[place], max_tokens=8) for place in places)
            )
            for place, (name, tokens, _) in zip(places, answers, strict=True):
                assert tokens == wanted[name][place]
            shares[weight] = sum(name == NEXT for name, *_ in answers) / REQUESTS
        name, tokens, _ = await running
        assert (name, tokens) == (STABLE, expected(references[STABLE], long, 600))
    assert shares[0] == 0 and shares[100] == 1
    assert 0 < shares[10] < 0.25 < shares[50] < 0.75
