"""Which connection gives way to a new one, and how a refusal is answered."""

from __future__ import annotations

import json

import pytest

from cluster.gateway.connections.limits import ConnectionLimits
from cluster.gateway.connections.refusals import FULL, http_refusals
from cluster.gateway.connections.registry import ConnectionRegistry


class Connection:
    active_s = 0.0
    aborted = False

    def abort(self):
        self.aborted = True


@pytest.fixture
def now_s():
    return [1000.0]


@pytest.fixture
def registry(now_s):
    def clock():
        return now_s[0]

    return ConnectionRegistry(ConnectionLimits(connections=3), http_refusals(), clock)


async def test_the_connection_that_has_waited_longest_gives_way(registry):
    first, second, third, fourth, fifth = (Connection() for _ in range(5))
    assert all(registry.admit(one) for one in (first, second, third))
    registry.work(second)
    registry.wait(first)  # behind the third
    assert registry.admit(fourth) and third.aborted
    assert registry.admit(fifth) and first.aborted
    assert not second.aborted
    assert len(registry) == 3


async def test_nothing_that_works_gives_way(registry):
    working = [Connection() for _ in range(3)]
    for one in working:
        registry.admit(one)
        registry.work(one)
    assert not registry.admit(Connection())
    registry.leave(working[0])
    registry.leave(working[0])
    assert registry.admit(Connection())
    assert not any(one.aborted for one in working)


async def test_a_quiet_socket_gives_way_after_the_others(registry, now_s):
    quiet, busy, waiting = (Connection() for _ in range(3))
    registry.join(quiet)
    registry.join(busy)
    registry.admit(waiting)
    busy.active_s = now_s[0]
    newest = Connection()
    assert registry.admit(newest) and waiting.aborted
    registry.work(newest)
    assert registry.admit(Connection()) and quiet.aborted and not busy.aborted


def test_refused_connections_that_linger_are_few(registry):
    refused = [Connection() for _ in range(200)]
    for one in refused:
        registry.linger(one)
    assert sum(not one.aborted for one in refused) == 64
    assert refused[0].aborted and not refused[-1].aborted
    assert len(registry) == 0


def test_a_refusal_is_a_whole_answer():
    head, _, body = FULL.answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["error"]["type"] == "server_error"
