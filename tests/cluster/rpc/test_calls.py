"""The stream between a router and a replica, over a real server: order, cancels, endings."""

from __future__ import annotations

import asyncio

import pytest

from bench.core.event_loop import new_loop, run
from cluster.api.error_mapping import error_from_failure
from cluster.rpc import server as call_server
from cluster.rpc.server import _RouterSession
from engine.errors import Overloaded
from protos.calls_pb2 import CallEvent, CancelCall, Command, ReplicaMessage, RouterMessage
from protos.decode_pb2 import DecodeRequest
from protos.prefill_pb2 import PrefillRequest
from protos.wire.framing import Wire
from tandem_client.protos.inference_pb2 import Tokens
from tests.cluster.rpc.call_rig import KEPT, PROMPT, Taker, rig
from tests.cluster.rpc.ports import CallPort
from tests.eventually import eventually
from tests.protos.wire.rig import connector


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
    await asyncio.wait_for(served.wait(), 30)
    # Its end is sent with the tokens, once the call is over.
    for _ in range(50):
        await asyncio.sleep(0)
    assert not server.idle
    wire.resume()
    await eventually(lambda: server.idle)
    wire.close()
    await server.stop()


async def test_the_calls_of_one_router_are_bounded(monkeypatch):
    monkeypatch.setattr(call_server, "_MOST_CALLS", 2)
    async with rig() as (_, streams, address, _):
        takers = [Taker() for _ in range(3)]
        for taker in takers:
            streams.to(address).begin(DecodeRequest(transfer="endless"), PROMPT, taker)
        await eventually(lambda: takers[2].ended)
        assert takers[2].events[-1].ended.failure.kind == "Overloaded"
        assert not takers[0].ended and not takers[1].ended


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
    await asyncio.wait_for(made.wait(), 30)
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
