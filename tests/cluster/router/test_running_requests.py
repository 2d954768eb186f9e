"""A request that several things end at once has one end, which its client gets and which counts."""

from __future__ import annotations

import asyncio

import pytest

from cluster.api import Summary
from cluster.router.accounting import RequestAccount
from cluster.router.canary.routing import CanaryRoute
from cluster.router.peers.request_stops import RequestStops
from cluster.router.request_tasks import RequestTasks
from cluster.router.running_requests import RunningRequests
from engine.errors import Cancelled, Internal, Overloaded, TandemError, Unavailable

SUMMARY = Summary(3, 4, (), 1.0)


class Counts:
    """The ends that were counted."""

    def __init__(self, fault=None):
        self.ends, self._fault = [], fault

    def ended(self, account, outcome, last):
        self.ends.append((outcome, last))
        if self._fault is not None:
            raise self._fault


class Stream:
    """The journal's stream of a request, which hands nothing on before its router has an answer."""

    def __init__(self):
        self.had = []

    def put(self, event, first=None):
        self.had.append(event)


class Rig:
    """A router with one request, whose phases end with `gate`."""

    def __init__(self, *, fault=None):
        self.counts, self.running = Counts(fault), RunningRequests(8)
        self.stops = RequestStops(self.running)
        self.tasks = RequestTasks(self.counts, self.running)
        account = RequestAccount("r", "acme", {"lane": "interactive"}, CanaryRoute("chat", "chat"))
        self.request = self.running.add(account, 1)
        self.gate = asyncio.get_running_loop().create_future()
        self.tasks.start(self.request, self._phases)

    async def _phases(self):
        return await self.gate

    async def end(self):
        """The last event that the client gets."""
        async with asyncio.timeout(10):
            while not isinstance(event := await self.request.events.get(), Summary | TandemError):
                pass
            await self.tasks.release(self.request)
        return event


async def settled():
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def cancel(rig):
    return rig.stops.here("r", "acme")


def stop(rig):
    return rig.stops.here("r", "acme", "alice")


def drain(rig):
    return bool(rig.running.end_plain())


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("second", [cancel, stop, drain])
@pytest.mark.parametrize("first", [cancel, stop, drain])
async def test_the_first_of_two_ends_counts(first, second, begun):
    rig = Rig()
    if begun:
        await settled()
    assert first(rig)
    ended_by = rig.request.ended_by
    assert second(rig)
    assert await rig.end() is ended_by
    outcome = "cancelled" if isinstance(ended_by, Cancelled) else "Unavailable"
    assert rig.counts.ends == [(outcome, ended_by)]
    assert not len(rig.running) and not cancel(rig)


@pytest.mark.parametrize("act", [cancel, stop, drain])
@pytest.mark.parametrize("own", [SUMMARY, Overloaded("full")])
async def test_an_end_that_was_not_read_yet_is_not_replaced(act, own):
    rig = Rig()
    if isinstance(own, TandemError):
        rig.gate.set_exception(own)
    else:
        rig.gate.set_result(own)
    await settled()
    assert act(rig) == (act is drain), "what has ended is not found"
    assert await rig.end() is own
    assert [last for _, last in rig.counts.ends] == [own]


async def test_a_cancel_beside_the_journal_leaves_the_end_that_the_journal_has():
    """Its client waits until Redis has the end; a cancel meanwhile comes too late."""
    rig = Rig()
    rig.request.stream = Stream()
    rig.gate.set_result(SUMMARY)
    await settled()
    assert not cancel(rig)
    assert rig.request.stream.had == [SUMMARY] and not rig.request.events.unread
    rig.request.events.put(SUMMARY)  # as the journal does
    assert await rig.end() is SUMMARY


async def test_a_stream_that_is_lost_ends_here_though_its_last_events_were_on_their_way():
    rig = Rig()
    rig.request.stream = Stream()
    rig.gate.set_result(SUMMARY)
    await settled()
    rig.running.lose()
    assert isinstance(await rig.end(), Unavailable)


async def test_an_end_comes_though_it_could_not_be_counted():
    rig = Rig(fault=ValueError("a fault"))
    rig.gate.set_result(SUMMARY)
    assert await rig.end() is SUMMARY


async def test_an_end_comes_though_what_it_waited_for_was_cancelled_by_another():
    rig = Rig()
    await settled()
    rig.gate.cancel()
    assert isinstance(await rig.end(), Cancelled | Internal)
    assert len(rig.counts.ends) == 1


async def test_a_release_that_is_cancelled_stays_cancelled():
    """Its caller has a deadline, and the task goes on to end by itself."""
    rig, slow = Rig(), asyncio.Event()

    async def phases():
        try:
            await rig.gate
        finally:
            await slow.wait()

    rig.running.remove(rig.request)
    rig.tasks.start(rig.request, phases)
    await settled()
    releasing = asyncio.create_task(rig.tasks.release(rig.request))
    await settled()
    releasing.cancel()
    await settled()
    assert releasing.cancelled()
    slow.set()
    await asyncio.wait_for(asyncio.wait([rig.request.task]), 10)
