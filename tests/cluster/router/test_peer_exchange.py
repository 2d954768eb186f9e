"""The routers' exchange over Redis: shares move, outages pass, leaving routers are forgotten."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time

import pytest

from cluster.config.deployment import DirectoryConfig
from cluster.config.tenant_limits import TenantConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from cluster.router.peer_exchange import EVERY_S, QUIET_S, PeerExchange
from cluster.router.peer_state import PeerState
from cluster.tenants.cap_shares import GONE_S, CapShares, PeerCapUse
from cluster.tenants.fair_share import FairShare
from cluster.tenants.need import Need, caps_of
from tests.cluster.discovery.members import SECRET
from tests.eventually import eventually

TENANTS = {"default": TenantConfig(max_concurrent=6, max_kv_tokens=600)}
NEED = Need(1, 10, 100)


@pytest.fixture
def server():
    server = EmbeddedRedis.start()
    yield server
    server.stop()


class Router:
    def __init__(self, directory, name):
        self.shares = CapShares(name, caps_of(TENANTS))
        self.fairness = FairShare(TENANTS, self.shares)
        self.exchange = PeerExchange(directory, name, self.shares, self.fairness)
        self.running = 0

    def admit(self):
        """As many as may run."""
        while self.fairness.cap("acme", NEED) is None:
            self.fairness.start("acme", 10, 100)
            self.running += 1


@pytest.fixture
async def directory(server):
    directory = Directory.connect(DirectoryConfig(url=server.url), SECRET)
    yield directory
    await directory.close()


@pytest.fixture
async def routers(directory):
    found = [Router(directory, name) for name in ("r", "s")]
    await asyncio.gather(*(one.exchange.start() for one in found))
    yield found
    for one in found:
        await one.exchange.stop()


async def test_an_idle_router_alone_exchanges_less_often(directory):
    exchanges = 0

    class Counting:
        async def exchange(self, router, state):
            nonlocal exchanges
            exchanges += 1
            return await directory.exchange(router, state)

        def __getattr__(self, name):
            return getattr(directory, name)

    router = Router(Counting(), "r")
    await router.exchange.start()
    for busy, pause_s in ((False, QUIET_S), (True, EVERY_S)):
        if busy:
            router.fairness.start("acme", 10, 100)
        # The first says that something changed, or that nothing does any more.
        before = exchanges
        await eventually(lambda before=before: exchanges >= before + 2)
        assert router.exchange.pause_s == pause_s
    await router.exchange.stop()


async def test_two_routers_fill_a_cap_together_and_never_exceed_it(routers):
    first, second = routers
    await eventually(lambda: all(one.shares.routers == 2 for one in routers))
    first.admit()
    second.admit()
    assert first.running + second.running <= 6
    await eventually(lambda: first.fairness.served("acme") == second.fairness.served("acme") == 60)
    # All of it at one, once the other has none.
    for _ in range(second.running):
        second.fairness.end("acme", 0, 100)
    second.running = 0
    first.fairness.wait("acme", Need(3, 30, 300))
    await eventually(lambda: first.shares.limit(("acme", "concurrent"), 6) == 6)
    first.admit()
    assert first.running == 6 and second.fairness.cap("acme", NEED) is not None


async def test_a_leaving_router_gives_its_shares_back(routers, directory):
    await eventually(lambda: all(one.shares.routers == 2 for one in routers))
    await routers[1].exchange.stop()
    await eventually(lambda: routers[0].shares.limit(("acme", "concurrent"), 6) == 6)
    states = await directory.exchange("x", PeerState(PeerCapUse()).to_json())
    assert PeerState.from_json(states["s"]).cap_use.left


async def test_the_state_of_a_dead_router_delays_the_next_router_briefly(directory):
    whole = PeerCapUse(5, 1, {("acme", "concurrent"): (6, 6)})
    await directory.exchange("died@1", PeerState(whole).to_json())
    router = Router(directory, "r")
    before = time.monotonic()
    await router.exchange.start()
    assert router.shares.settled and time.monotonic() - before < GONE_S
    await eventually(lambda: router.shares.limit(("acme", "concurrent"), 6) == 6)
    await router.exchange.stop()


async def test_an_outage_leaves_an_even_share_and_ends(routers, server, caplog):
    await eventually(lambda: all(one.shares.routers == 2 for one in routers))
    caplog.set_level(logging.WARNING)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await eventually(lambda: all(one.shares.alone for one in routers))
        assert [one.shares.limit(("acme", "concurrent"), 6) for one in routers] == [3, 3]
        for one in routers:
            one.admit()
        assert sum(one.running for one in routers) == 6
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await eventually(lambda: not any(one.shares.alone for one in routers))
    await eventually(lambda: all(one.shares.routers == 2 for one in routers))
    messages = [record.message for record in caplog.records]
    assert any("no longer shared" in line for line in messages)
    assert any("shared again" in line for line in messages)


async def test_a_peer_state_that_cannot_be_read_is_passed_over(routers, directory, caplog):
    good = '{"sequence":1,"among":0,"portions":[]'
    for broken in (
        *("", "3", "{}", "[" * 100_000, '{"sequence":1,"among":-1,"portions":[]}'),
        '{"sequence":Infinity,"among":0,"portions":[]}',
        *(f'{good},"charged":{{"acme":{total}}}}}' for total in ("Infinity", "NaN", "1e999")),
    ):
        with pytest.raises(ValueError, match=r"."):
            PeerState.from_json(broken)
        await directory.exchange("broken", broken)
        await routers[0].exchange.once()
    assert routers[0].shares.routers <= 2 and not routers[0].shares.alone
    unreadable = [line for line in caplog.messages if "unreadable" in line]
    assert len(unreadable) <= len(routers)  # once a minute each


def test_a_peer_state_survives_the_wire():
    cap_use = PeerCapUse(3, 2, {("a", "kv_tokens"): (5, 7)})
    full = PeerState(cap_use, {"a": 1.5}, frozenset({"a"}), {"chat": "why"})
    assert PeerState.from_json(full.to_json()) == full
