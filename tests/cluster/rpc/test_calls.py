"""The stream between a router and a replica, over a real server: order, cancels, endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.core.event_loop import new_loop, run
from cluster.api.error_mapping import error_from_failure
from cluster.rpc import server as call_server
from cluster.rpc.client_stream import CallStreams
from cluster.rpc.server import _RouterSession
from engine.errors import Overloaded, ReplicaLost, TandemError
from engine.types.sampling_params import SamplingParams
from protos.calls_pb2 import CallEvent, CancelCall, Command, ReplicaMessage, RouterMessage
from protos.decode_pb2 import DecodeRequest
from protos.prefill_pb2 import PrefillRequest
from protos.shared_prompt import SharedPrompt
from protos.wire.framing import Wire
from tandem_client.protos.inference_pb2 import Tokens
from tests.cluster.rpc.ports import CallPort
from tests.eventually import eventually
from tests.protos.wire.rig import OTHER_SECRET, connector

PROMPT = SharedPrompt((1, 2), SamplingParams(max_tokens=4, seed=1))
KEPT = Command(call=1, prompt=PROMPT.encoded)


class Taker:
    """A receiver that keeps everything."""

    def __init__(self):
        self.events: list[CallEvent] = []
        self.error: TandemError | None = None

    def take(self, event):
        self.events.append(event)

    def lost(self, error):
        self.error = error

    @property
    def ended(self):
        return bool(self.events) and self.events[-1].HasField("ended")

    @property
    def ids(self):
        return [one for event in self.events for one in event.tokens.ids]


class Steps:
    """A pool's servicer: `endless` emits until cancelled, otherwise ten tokens, or an error."""

    def __init__(self):
        self.begun: list[str] = []
        self.freed: list[str] = []
        self.error: Exception | None = None
        self.freeing = asyncio.Event()

    async def serve(self, request, prompt, queue):
        self.begun.append(request.transfer)
        try:
            if self.error is not None:
                raise self.error
            count = 0
            while request.transfer.startswith("endless") or count < 10:
                queue.put(CallEvent(tokens=Tokens(index=count, ids=[count])))
                count += 1
                await asyncio.sleep(0.001)
        finally:
            if request.transfer == "endless-slow-to-free":
                await self.freeing.wait()
            self.freed.append(request.transfer)


@asynccontextmanager
async def rig() -> AsyncIterator[tuple[Steps, CallStreams, str, CallPort]]:
    steps = Steps()
    server = CallPort({"decode": steps.serve})
    address = await server.start()
    streams = CallStreams(connector())
    try:
        yield steps, streams, address, server
    finally:
        await streams.close()
        await server.stop()


async def test_many_calls_share_a_stream_and_each_is_in_order():
    async with rig() as (steps, streams, address, _):
        takers = [Taker() for _ in range(50)]
        for number, taker in enumerate(takers):
            streams.to(address).begin(DecodeRequest(transfer=str(number)), PROMPT, taker)
        await eventually(lambda: all(taker.ended for taker in takers))
        assert all(taker.ids == list(range(10)) for taker in takers)
        assert not any(taker.events[-1].ended.failure.kind for taker in takers)
        assert sorted(steps.freed, key=int) == [str(number) for number in range(50)]


def test_so_they_do_in_the_event_loop_that_ray_gives_its_processes():
    assert type(new_loop()).__module__.startswith("uvloop")
    run(test_many_calls_share_a_stream_and_each_is_in_order())


async def test_a_cancel_reaches_one_call_alone_and_is_answered_when_all_is_freed():
    async with rig() as (steps, streams, address, _):
        victim, other = Taker(), Taker()
        call = streams.to(address).begin(
            DecodeRequest(transfer="endless-slow-to-free"), PROMPT, victim
        )
        streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, other)
        await eventually(lambda: victim.ids and other.ids)
        call.cancel()
        call.cancel()
        had = len(other.ids)
        await eventually(lambda: len(other.ids) > had + 20)
        assert not victim.ended
        steps.freeing.set()
        await eventually(lambda: victim.ended)
        assert steps.freed == ["endless-slow-to-free"]
        assert not other.ended
        call.cancel()


async def test_a_call_that_is_cancelled_with_its_beginning_never_begins():
    async with rig() as (steps, streams, address, _):
        taker = Taker()
        streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, taker).cancel()
        await eventually(lambda: taker.ended)
        assert not steps.begun


async def test_a_cut_ends_calls_at_once_and_nothing_comes_later():
    """The replica frees what it held, and the next call goes over a new connection."""
    async with rig() as (steps, streams, address, server):
        taker = Taker()
        assert streams.heard(address) is None and not streams.cut(address, "no call runs")
        streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, taker)
        await eventually(lambda: taker.ids)
        assert streams.heard(address)
        assert streams.cut(address, "nothing was heard for 1.5 s")
        later = Taker()
        streams.to(address).begin(DecodeRequest(transfer="later"), PROMPT, later)
        await eventually(lambda: taker.error)
        assert isinstance(taker.error, ReplicaLost) and "1.5 s" in taker.error.message
        had = len(taker.ids)
        await eventually(lambda: later.ended and "endless" in steps.freed)
        assert len(taker.ids) == had
        await eventually(lambda: server.sessions == 1)


async def test_a_replica_without_news_is_heard_within_two_signs_of_life():
    """A router takes a connection for cut after 12 reports, which take 1.2 s or more."""
    async with rig() as (steps, streams, address, _):
        steps.freeing.clear()
        taker = Taker()
        call = streams.to(address).begin(
            DecodeRequest(transfer="endless-slow-to-free"), PROMPT, taker
        )
        await eventually(lambda: taker.ids)
        call.cancel()
        await eventually(lambda: steps.begun and not streams.heard(address))
        await eventually(lambda: streams.heard(address), 2 * call_server.BEAT_S + 0.1)
        steps.freeing.set()


async def test_a_cut_ends_a_connection_without_calls_for_the_next_call_to_make_another():
    async with rig() as (_, streams, address, server):
        first, second = Taker(), Taker()
        streams.to(address).begin(DecodeRequest(transfer="1"), PROMPT, first)
        await eventually(lambda: first.ended)
        assert not streams.cut(address, "no word of calls")
        assert streams.heard(address) is None
        streams.to(address).begin(DecodeRequest(transfer="2"), PROMPT, second)
        await eventually(lambda: second.ended and server.sessions == 1)


async def test_a_cut_ends_calls_whose_connection_is_not_open_yet():
    async with rig() as (steps, streams, address, _):
        taker = Taker()
        streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, taker)
        assert streams.cut(address, "silent")
        assert isinstance(taker.error, ReplicaLost)
        again = Taker()
        streams.to(address).begin(DecodeRequest(transfer="again"), PROMPT, again)
        await eventually(lambda: again.ended)
        assert steps.begun == ["again"]


async def test_a_failure_arrives_as_what_was_raised():
    async with rig() as (steps, streams, address, _):
        steps.error = Overloaded("no capacity", retry_after_s=2.5)
        taker = Taker()
        streams.to(address).begin(DecodeRequest(transfer="x"), PROMPT, taker)
        await eventually(lambda: taker.ended)
        error = error_from_failure(taker.events[-1].ended.failure)
        assert isinstance(error, Overloaded)
        assert (error.message, error.retry_after_s) == ("no capacity", 2.5)


@pytest.mark.parametrize("fault", [RuntimeError("secret"), KeyError("secret")])
async def test_a_fault_is_reported_without_its_text(fault):
    async with rig() as (steps, streams, address, _):
        steps.error = fault
        taker = Taker()
        streams.to(address).begin(DecodeRequest(transfer="x"), PROMPT, taker)
        await eventually(lambda: taker.ended)
        assert taker.events[-1].ended.failure.kind == "Internal"
        assert "secret" not in taker.events[-1].ended.failure.message


async def test_work_that_a_replica_does_not_do_is_refused():
    async with rig() as (_, streams, address, _):
        taker = Taker()
        streams.to(address).begin(PrefillRequest(transfer="x"), PROMPT, taker)
        await eventually(lambda: taker.ended)
        assert taker.events[-1].ended.failure.kind == "Unavailable"


async def test_the_death_of_a_replica_fails_all_its_calls_and_the_next_opens_a_new_stream():
    async with rig() as (steps, streams, address, server):
        takers = [Taker() for _ in range(5)]
        for taker in takers:
            streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, taker)
        await eventually(lambda: all(taker.ids for taker in takers))
        await server.stop()
        await eventually(lambda: all(taker.error for taker in takers))
        assert all(isinstance(taker.error, ReplicaLost) for taker in takers)
        assert len(steps.freed) == 5
        refused, again = Taker(), Taker()
        streams.to(address).begin(DecodeRequest(transfer="1"), PROMPT, refused)
        await eventually(lambda: isinstance(refused.error, ReplicaLost))
        reborn = CallPort({"decode": steps.serve})
        await reborn.start(int(address.rpartition(":")[2]))
        streams.to(address).begin(DecodeRequest(transfer="1"), PROMPT, again)
        await eventually(lambda: again.ended)
        await reborn.stop()


async def test_a_fault_while_sending_fails_the_stream_and_no_other():
    async with rig() as (_, streams, _, _):

        def broken():
            raise RuntimeError("secret")

        async def serve(request, prompt, queue):
            queue.ready(broken)
            await asyncio.Event().wait()

        server, taker = CallPort({"decode": serve}), Taker()
        streams.to(await server.start()).begin(DecodeRequest(transfer="x"), PROMPT, taker)
        await eventually(lambda: taker.error is not None)
        assert isinstance(taker.error, ReplicaLost)
        await server.stop()


async def test_a_router_that_goes_away_ends_its_calls_alone():
    async with rig() as (steps, streams, address, _):
        other, mine, theirs = CallStreams(connector()), Taker(), Taker()
        streams.to(address).begin(DecodeRequest(transfer="endless-mine"), PROMPT, mine)
        other.to(address).begin(DecodeRequest(transfer="endless-theirs"), PROMPT, theirs)
        await eventually(lambda: mine.ids and theirs.ids)
        await other.close()
        await eventually(lambda: steps.freed == ["endless-theirs"])
        assert theirs.error is not None
        had = len(mine.ids)
        await eventually(lambda: len(mine.ids) > had)


async def test_a_receiver_that_breaks_ends_alone():
    class Broken(Taker):
        def take(self, event):
            raise RuntimeError

    async with rig() as (steps, streams, address, _):
        broken, sound = Broken(), Taker()
        streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, broken)
        streams.to(address).begin(DecodeRequest(transfer="2"), PROMPT, sound)
        await eventually(lambda: sound.ended)
        assert broken.error is not None
        assert sound.ids == list(range(10))
        # Nobody listens to it any more: the replica is told.
        await eventually(lambda: "endless" in steps.freed)


async def test_a_replica_is_not_idle_while_what_calls_gave_is_unsent():
    served = asyncio.Event()

    async def serve(request, prompt, queue):
        queue.put(CallEvent(tokens=Tokens(ids=[1], text="x" * (16 << 20))))
        served.set()

    server = CallPort({"decode": serve})
    wire = Wire(lambda message: None, lambda reason: None)
    await connector().connect(await server.start(), "calls", wire)
    wire.pause()
    command = RouterMessage(commands=[KEPT, Command(call=1, decode=DecodeRequest(prompt=1))])
    wire.send(command.SerializeToString())
    await asyncio.wait_for(served.wait(), 5)
    # Its end is sent with the tokens, once the call is over.
    for _ in range(50):
        await asyncio.sleep(0)
    assert not server.idle
    wire.resume()
    await eventually(lambda: server.idle)
    wire.close()
    await server.stop()


async def test_a_router_that_begins_a_call_twice_loses_its_connection():
    async with rig() as (steps, _, address, server):
        lost: list[str] = []
        wire = Wire(lambda message: None, lost.append)
        await connector().connect(address, "calls", wire)
        command = Command(call=1, decode=DecodeRequest(transfer="endless", prompt=1))
        wire.send(RouterMessage(commands=[KEPT, command, command]).SerializeToString())
        await eventually(lambda: lost and not server.sessions)
        await eventually(lambda: steps.freed == steps.begun)


async def test_the_calls_of_one_router_are_bounded(monkeypatch):
    monkeypatch.setattr(call_server, "_MOST_CALLS", 2)
    async with rig() as (_, streams, address, _):
        takers = [Taker() for _ in range(3)]
        for taker in takers:
            streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, taker)
        await eventually(lambda: takers[2].ended)
        assert takers[2].events[-1].ended.failure.kind == "Overloaded"
        assert not takers[0].ended and not takers[1].ended


async def test_a_replica_hangs_up_on_what_it_cannot_read():
    async with rig() as (_, _, address, server):
        lost: list[str] = []
        wire = Wire(lambda message: None, lost.append)
        await connector().connect(address, "calls", wire)
        wire.send(b"\xff\xff\xff")
        await eventually(lambda: lost and not server.sessions)


async def test_a_stranger_on_a_replicas_port_begins_no_call():
    async with rig() as (steps, _, address, server):
        strange, taker = CallStreams(connector(OTHER_SECRET)), Taker()
        strange.to(address).begin(DecodeRequest(transfer="1"), PROMPT, taker)
        await eventually(lambda: taker.error is not None)
        assert isinstance(taker.error, ReplicaLost)
        assert "did not prove the cluster's secret" in taker.error.message
        await eventually(lambda: server.refused == ["closed"])
        assert not steps.begun
        await strange.close()


async def test_a_call_that_does_not_end_delays_no_stop(monkeypatch):
    monkeypatch.setattr(call_server, "_STOP_S", 0.1)
    async with rig() as (steps, streams, address, server):
        taker = Taker()
        streams.to(address).begin(DecodeRequest(transfer="endless-slow-to-free"), PROMPT, taker)
        await eventually(lambda: taker.ids)
        await asyncio.wait_for(server.stop(), 5)
        steps.freeing.set()
        await eventually(lambda: steps.freed)


async def test_a_stream_is_kept_until_its_calls_have_ended():
    async with rig() as (_, streams, address, _):
        taker = Taker()
        streams.to(address).begin(DecodeRequest(transfer="1"), PROMPT, taker)
        await streams.keep((), 30)
        assert taker.ids == list(range(10))
        assert taker.ended


async def test_a_router_that_reads_nothing_slows_no_step_and_gets_larger_messages():
    """The stream's write never returns for a while; what was made meanwhile is one event."""
    made, opened, messages = asyncio.Event(), asyncio.Event(), []

    async def serve(request, prompt, queue):
        unsent: list[int] = []

        def collect():
            event = CallEvent(tokens=Tokens(index=unsent[0], ids=unsent))
            unsent.clear()
            return event

        for token in range(1000):
            unsent.append(token)
            queue.ready(collect)
            await asyncio.sleep(0)
        made.set()

    class Slow:
        """A wire that sends nothing on until it is opened."""

        def send(self, message):
            messages.append(ReplicaMessage.FromString(message))

        unsent = 0

        async def drained(self):
            await opened.wait()

    calls = _RouterSession({"decode": serve}, lambda session: None)
    calls.wire = Slow()
    command = Command(call=1, decode=DecodeRequest(prompt=1))
    calls.take(RouterMessage(commands=[KEPT, command]).SerializeToString())
    await asyncio.wait_for(made.wait(), 5)
    assert len(messages) == 1
    assert not calls.idle
    opened.set()
    await eventually(lambda: messages[-1].events[-1].HasField("ended"))
    await eventually(lambda: calls.idle)
    assert len(messages) == 2
    got = [one for message in messages for event in message.events for one in event.tokens.ids]
    assert got == list(range(1000))
    cancel = Command(call=1, cancel=CancelCall())
    calls.take(RouterMessage(commands=[cancel]).SerializeToString())
    calls.lost("over")
    await calls.over.wait()
