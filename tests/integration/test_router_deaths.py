"""Two routers of which either dies at any event of a stream: the typed client gets all of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from cluster.router.server import RouterServer
from tandem_client import Client
from tests.integration.local import cluster
from tests.integration.test_resumable import Read, die, undisturbed
from tests.integration.test_resume import PROMPTS, SAMPLED

OPTIONS = {**SAMPLED, "n": 2, "max_tokens": 8}
WITHIN_S = 60.0
# Started, Summary, and some of up to 16 with tokens: a busy machine merges these.
FEWEST_EVENTS = 3


class TwoRouters:
    """Two places for routers, whose addresses stay. The first gets the requests of a client."""

    def __init__(self, config, directory):
        self._config, self._directory = config, directory
        self._routers, self._all = {}, []
        self._dead, self._deaths = set(), []

    @property
    def addresses(self):
        return [router.grpc_address for router in self._routers.values()]

    async def fill(self):
        """Start a router in each place where none lives."""
        for place in range(2):
            await self._settle(place)

    async def _settle(self, place, port=0):
        before = self._routers.get(place)
        if before is not None and before.id not in self._dead:
            return
        if before is not None:
            port = int(before.grpc_address.rpartition(":")[2])
        config = replace(self._config, router=replace(self._config.router, grpc_port=port))
        name = f"router-{len(self._all) + 1}"
        router = await RouterServer.start(config, name, self._directory)
        self._routers[place] = router
        self._all.append(router)

    def kill(self, place, *, at_event):
        """Let a router die when the first router is about to send that event of its next stream.

        Returns a list that gets the event once it has died.
        """
        died, victim, owner = [], self._routers[place], self._routers[0].router
        generate = owner.generate

        async def breaking(request):
            owner.generate = generate
            events = generate(request)
            sent = 0
            async for event in events:
                if sent == at_event:
                    died.append(sent)
                    self._dead.add(victim.id)
                    self._deaths.append(asyncio.create_task(die(victim)))
                    if place == 0:
                        await asyncio.Event().wait()
                yield event
                sent += 1

        owner.generate = breaking
        return died

    async def dead(self):
        """Wait until those that were killed are dead."""
        await asyncio.gather(*self._deaths)
        self._deaths.clear()

    async def close(self):
        for router in self._all:
            await router.stop()


@asynccontextmanager
async def two_routers(config):
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(cluster(config))
        routers = TwoRouters(config, local.directory)
        stack.push_async_callback(routers.close)
        await routers.fill()
        yield local, routers


@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", [0, 1], ids=["its-own", "the-other"])
async def test_a_stream_is_exact_whichever_router_dies_at_any_event(config, place):
    async with two_routers(config) as (local, routers):
        whole = await undisturbed(local.client, PROMPTS[1], OPTIONS)
        event = unmet = 0
        while True:
            await routers.fill()
            died = routers.kill(place, at_event=event)
            async with Client(routers.addresses) as client:
                read = Read(client.generate(PROMPTS[1], resumable=True, **OPTIONS))
                await asyncio.wait_for(read.task, WITHIN_S)
            await routers.dead()
            assert read.have == whole.have, event
            assert read.finish == whole.finish, event
            assert read.summary.completion_tokens == whole.summary.completion_tokens
            # A busy machine may bring the client to the other router, or merge the last events.
            unmet = 0 if died else unmet + 1
            if unmet == 3:
                break
            event += bool(died)
        assert event >= FEWEST_EVENTS
        await local.idle()
