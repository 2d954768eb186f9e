"""Requests are ended on whichever router they run: within a deadline, for their tenant alone."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from cluster.router.peers import request_stops
from cluster.router.peers.peer_calls import ASK_S
from cluster.router.peers.request_stops import RequestStops
from engine.errors import Overloaded, Unavailable
from protos.peer_pb2 import PeerAnswer, StopAnswer
from tests.cluster.router.peers.rig import peers_of, saying
from tests.cluster.router.peers.test_peer_calls import never
from tests.eventually import eventually


class Running:
    """The requests of a router by tenant and id, and the errors with which they were ended."""

    def __init__(self, *names):
        self.names, self.errors = set(names), {}

    def find(self, tenant, request_id):
        key = tenant, request_id

        def cancel(error):
            self.errors[key] = error.message
            return True

        return SimpleNamespace(cancel=cancel) if key in self.names else None


def router(running, asked):
    """Another router with these requests."""
    stops = RequestStops(running)

    def answer(question):
        stop = question.stop
        asked.append(stop.request_id)
        found = stops.here(stop.request_id, stop.tenant, stop.operator)
        return PeerAnswer(stop=StopAnswer(found=found))

    return saying(answer)


async def test_a_request_of_another_router_ends_once_and_for_its_tenant_alone():
    there, here, asked = Running(("acme", "r")), Running(("acme", "own")), []
    async with peers_of(one=router(there, asked), two=router(Running(), asked)) as (peers, _):
        stops = RequestStops(here)
        stops.peers = peers
        for tenant, name in (("evil", "r"), ("acme", "nobody"), ("evil", "own")):
            assert not await stops.cancel(name, tenant)
        assert there.errors == here.errors == {}
        asked.clear()
        assert await stops.cancel("own", "acme")
        assert asked == [], "a request that runs here concerns no other router"
        assert await stops.cancel("r", "acme")
        assert asked.count("r") <= 2, "each router was asked once"
        assert there.errors == {("acme", "r"): "the request was cancelled"}
        assert (await stops.anywhere("r", "acme", "alice")).found
        assert there.errors == {("acme", "r"): "an operator stopped the request"}


async def test_a_request_that_begins_here_while_the_others_are_asked_ends():
    here = Running()

    def answer(question):
        here.names.add(("acme", "r"))
        return PeerAnswer(stop=StopAnswer(found=False))

    async with peers_of(one=saying(answer)) as (peers, _):
        stops = RequestStops(here)
        stops.peers = peers
        assert await stops.cancel("r", "acme")
    assert here.errors == {("acme", "r"): "the request was cancelled"}


async def test_a_router_that_does_not_answer_is_a_reason_and_no_answer():
    async with peers_of(frozen=never, one=router(Running(("acme", "r")), [])) as (peers, _):
        stops = RequestStops(Running())
        stops.peers = peers
        assert await stops.cancel("r", "acme")
        told = []
        for tenant in ("acme", "evil"):  # the request exists, and for one of them it does not
            began_s = time.monotonic()
            with pytest.raises(Unavailable) as raised:
                await stops.cancel("r" if tenant == "evil" else "nobody", tenant)
            assert time.monotonic() - began_s < ASK_S + 10
            told.append(raised.value.message)
        assert told[0] == told[1] and "frozen" not in told[0], (
            "it names what a tenant must not know"
        )


async def test_so_many_cancels_wait_for_other_routers(monkeypatch):
    monkeypatch.setattr(request_stops, "MOST_CANCELS", 2)
    asked = []

    async def frozen(stream):
        asked.append(await stream.read())
        await asyncio.Event().wait()

    async with peers_of(frozen=frozen) as (peers, _):
        stops = RequestStops(Running(("acme", "own")))
        stops.peers = peers
        waiting = [asyncio.create_task(stops.cancel(f"r{number}", "acme")) for number in range(2)]
        await eventually(lambda: len(asked) == 2)
        with pytest.raises(Overloaded, match="2 cancels wait"):
            await stops.cancel("r2", "acme")
        assert await stops.cancel("own", "acme")
        assert all(
            isinstance(one, Unavailable)
            for one in await asyncio.gather(*waiting, return_exceptions=True)
        )
        with pytest.raises(Unavailable):
            await stops.cancel("r2", "acme")


async def test_a_router_alone_asks_nobody():
    stops = RequestStops(Running())
    assert not await stops.cancel("r", "acme")
    async with peers_of() as (peers, _):
        stops.peers = peers
        assert not await stops.cancel("r", "acme")
