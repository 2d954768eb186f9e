"""A decode replica opens links to the senders that it knows, once in each of their lives."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cluster.replica.link_opening import open_links_ahead, senders_for
from cluster.replica_record import ReplicaRecord
from engine.errors import Unavailable


def record(name, role, **more):
    return ReplicaRecord(name, role, f"{name}:1", more.pop("generation", 1), **more)


OWN = record("d0", "decode", kv_identity="k")
SENDER = record("p0", "prefill", kv_identity="k")


def test_senders_are_prefill_replicas_of_the_same_kv_that_stay():
    others = [
        OWN,
        record("p1", "prefill", kv_identity="other"),
        record("p2", "prefill", kv_identity="k", leaving=True),
        record("d1", "decode", kv_identity="k"),
        record("r0", "router"),
    ]
    assert senders_for(OWN, [SENDER, *others]) == [SENDER]
    assert senders_for(replace(OWN, role="prefill"), [SENDER]) == []


class LinksOpened:
    """A directory and a receiver: each look finds the next members, the last one for ever."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.opened = []
        self.seen = asyncio.Event()

    async def members(self):
        if len(self.looks) == 1:
            self.seen.set()
            return self.looks[0]
        found = self.looks.pop(0)
        if found is None:
            raise Unavailable("no directory")
        return found

    async def open_ahead(self, peer):
        self.opened.append(peer.address)
        return len(self.opened) > 1


async def opened(*looks):
    world = LinksOpened(*looks, [])
    heartbeat = SimpleNamespace(directory=world, record=OWN)
    task = asyncio.create_task(open_links_ahead(heartbeat, world, 0))
    async with asyncio.timeout(30):
        await world.seen.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return world.opened


@pytest.mark.parametrize("outage", [[], [None]])
async def test_a_sender_is_linked_once_and_again_in_its_next_life(outage):
    """The first link fails, and is left to the requests; an outage changes nothing."""
    again = replace(SENDER, generation=2, address="p0:2")
    looks = [[OWN], [OWN, SENDER], *outage, [OWN, SENDER], [OWN, again], [OWN, again]]
    assert await opened(*looks) == ["p0:1", "p0:2"]
