"""Silent routers: found by a health check, and left by resumable streams alone."""

from __future__ import annotations

import asyncio
import time

import pytest

from cluster.api import Started, Tokens
from engine.errors import Cancelled, Unavailable
from tandem_client import Client, grpc_client, silence_watch
from tests.eventually import eventually
from tests.tandem_client.routers import two_routers

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
QUIET_S, ANSWER_S = 0.5, 1.0


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(silence_watch, "QUIET_S", QUIET_S)
    monkeypatch.setattr(silence_watch, "ANSWER_S", ANSWER_S)


@pytest.fixture
async def routers():
    async with two_routers() as found:
        found.generators[0].after_events, found.generators[0].times = 3, 1
        yield found


async def indices(events):
    return [one.index async for one in events if isinstance(one, Tokens)]


@pytest.mark.parametrize("addresses", [1, 2])
async def test_a_stream_of_a_silent_router_goes_on_elsewhere(routers, addresses):
    """Behind one address by a new connection, and without it by another address."""
    routers.generators[0].breaks = routers.proxies[0].hold
    async with Client(routers.addresses[:addresses]) as client:
        began_s = time.monotonic()
        assert await indices(client.generate("a b", resumable=True)) == [0, 1, 2, 3]
        assert QUIET_S + ANSWER_S <= time.monotonic() - began_s < 20
    if addresses == 1:
        # A slow router may be left for one more.
        assert routers.proxies[0].connections >= 2


async def test_a_request_that_a_silent_router_did_not_begin_goes_elsewhere(routers):
    routers.generators[0].after_events = 0
    routers.generators[0].breaks = routers.proxies[0].hold
    async with Client(routers.addresses) as client:
        assert await indices(client.generate("a b", resumable=True)) == [0, 1, 2, 3]


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_slow_stream_is_not_left(routers, resumable, monkeypatch):
    """Its router answers. A plain stream could not go on elsewhere."""
    monkeypatch.setattr(silence_watch, "ANSWER_S", 10.0)
    if not resumable:
        routers.generators[0].breaks = routers.proxies[0].hold
    async with Client(routers.addresses) as client:
        seen = []

        async def read():
            async for event in client.generate("a b", resumable=resumable):
                seen.append(event)  # noqa: PERF401

        reading = asyncio.create_task(read())
        await eventually(lambda: len(seen) == 3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading), 6 * QUIET_S)
        reading.cancel()
    assert isinstance(seen[0], Started)
    assert [proxy.connections for proxy in routers.proxies] == [1, 0]


@pytest.fixture
def soon(monkeypatch):
    for module in (silence_watch, grpc_client):
        monkeypatch.setattr(module, "SILENCE_S", 1.0)
    monkeypatch.setattr(silence_watch, "UNANSWERED_S", 0.3)


async def test_a_plain_stream_of_a_silent_router_ends(routers, soon):
    routers.generators[0].breaks = routers.proxies[0].hold
    async with Client(routers.addresses) as client:
        with pytest.raises(Unavailable, match="silent for 1 s"):
            await asyncio.wait_for(indices(client.generate("a b")), 30)


async def test_scores_without_a_deadline_wait_for_a_router_that_answers_and_no_other(routers, soon):
    routers.generators[0].after_events, routers.generators[0].times = 0, 2
    async with Client(routers.addresses[0]) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.score(["a b"]), 3.0)
        routers.generators[0].breaks = routers.proxies[0].hold
        with pytest.raises(Unavailable, match="silent for 1 s"):
            await asyncio.wait_for(client.score(["a b"]), 30)
        assert len(await client.score(["a b"])) == 1, "over another connection"


async def test_a_cancel_waits_for_no_router_once_another_has_ended_the_request(routers):
    generator = routers.generators[1]
    generator.endless, generator.pause_s = True, 0.01
    async with Client(routers.addresses[1]) as other, Client(routers.addresses) as client:
        running = asyncio.create_task(other.complete("a", request_id="r"))
        await eventually(lambda: generator.started)
        await client.cancel("nobody")
        routers.proxies[0].hold()
        assert await asyncio.wait_for(client.cancel("r"), 5)
        with pytest.raises(Cancelled):
            await running


async def test_a_caller_that_pauses_blames_no_router():
    """Meanwhile it does not wait for its router."""
    calls, asked = [], []

    async def answers(within_s):
        asked.append(within_s)
        return False

    class Call:
        async def read(self):
            return "event"

        def cancel(self):
            calls.append("cancelled")

    watch = silence_watch.SilenceWatch(answers, lambda: None)
    with watch.over(Call()) as watched:
        assert await watched.read(25.0, patient=False) == "event"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3 * QUIET_S)
        assert not asked and not calls and watched.silence is None
    watch.close()
