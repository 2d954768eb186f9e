"""The chaos's clients of HTTP and the WebSocket read every event once, wherever a router ends."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from cluster.api import Started, Summary, Tokens
from engine.errors import Cancelled, InvalidRequest, Unavailable
from tests.chaos.cables import Cables, dial_tcp
from tests.chaos.cancels import cancel
from tests.chaos.web_clients import Clients
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator

WEB = ("http", "websocket")
OPTIONS = {"request_id": "r", "tenant": "t", "max_tokens": 4}


@asynccontextmanager
async def two_routers(**script):
    """Clients, and the cables to the front ends of two generators with one journal."""
    first = ScriptedGenerator(**script)
    second = ScriptedGenerator(journal=first.journal, **script)
    cables = Cables(dict)
    async with front_end(first) as one, front_end(second) as other:
        doors = [await cables.lay("door", port(at), "client", "me") for at in (one, other)]
        try:
            async with Clients(["127.0.0.1:1"], doors) as clients:
                yield cables, clients
        finally:
            await cables.close()


def port(number):
    async def told():
        return number

    return dial_tcp(told)


async def read(client, **options):
    return [event async for event in client.generate((1, 2), **OPTIONS | options)]


def ids(events):
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


@pytest.mark.parametrize("front_end_name", WEB)
@pytest.mark.parametrize("resumable", [False, True])
async def test_an_answer_has_the_events_of_the_api(front_end_name, resumable):
    async with two_routers() as (_, clients):
        events = await read(clients.of(front_end_name), resumable=resumable, logprobs=1)
    assert isinstance(events[0], Started) and isinstance(events[-1], Summary)
    assert bool(events[0].stream_id) == resumable
    assert events[-2].finish_reason == "length"  # in HTTP it may have no token
    tokens = [one for one in events[1:-1] if one.ids]
    assert [one.index for one in tokens] == [0, 1, 2, 3]
    assert all(one.sampled[0].logprob is not None for one in tokens)


@pytest.mark.parametrize("front_end_name", WEB)
async def test_a_resumable_stream_goes_on_where_its_connection_breaks(front_end_name):
    async with two_routers(pause_s=0.05) as (cables, clients):
        client, events = clients.of(front_end_name), []
        whole = await read(client)
        async for event in client.generate((1, 2), **OPTIONS, resumable=True):
            events.append(event)
            if len(events) in (2, 4):
                assert cables.cut(lambda wire: True) > 0
    assert ids(events) == ids(whole)
    assert sum(isinstance(event, Started) for event in events) == 1


@pytest.mark.parametrize("front_end_name", WEB)
async def test_another_stream_breaks_with_its_connection(front_end_name):
    async with two_routers(pause_s=0.05) as (cables, clients):
        with pytest.raises(Unavailable):
            async for event in clients.of(front_end_name).generate((1, 2), **OPTIONS):
                if isinstance(event, Tokens):
                    cables.cut(lambda wire: True)


@pytest.mark.parametrize("front_end_name", WEB)
async def test_a_stream_ends_with_its_error(front_end_name):
    async with two_routers(error=Unavailable("gone"), after=2) as (_, clients):
        with pytest.raises(Unavailable, match="gone"):
            await read(clients.of(front_end_name))
        with pytest.raises(InvalidRequest, match="max_tokens"):
            await read(clients.of(front_end_name), max_tokens=-1)


@pytest.mark.parametrize("front_end_name", WEB)
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("way", ["once", "twice"])
async def test_a_cancel_ends_it(front_end_name, resumable, way):
    async with two_routers(endless=True, pause_s=0.005) as (_, clients):
        client = clients.of(front_end_name)
        with pytest.raises(Cancelled):
            async for event in client.generate((1, 2), **OPTIONS, resumable=resumable):
                if isinstance(event, Tokens):
                    await cancel(way, clients, front_end_name, "r", "")
