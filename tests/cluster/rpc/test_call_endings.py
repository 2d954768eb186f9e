"""How calls end: by cuts, deaths, faults, and routers that go away."""

from __future__ import annotations

import asyncio

from cluster.rpc import server as call_server
from cluster.rpc.client_stream import CallStreams
from engine.errors import ReplicaLost
from protos.calls_pb2 import Command, RouterMessage
from protos.decode_pb2 import DecodeRequest
from protos.wire.framing import Wire
from tests.cluster.rpc.call_rig import KEPT, PROMPT, Taker, rig
from tests.cluster.rpc.ports import CallPort
from tests.eventually import eventually
from tests.protos.wire.rig import OTHER_SECRET, connector


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


async def test_a_replica_without_news_is_heard_by_its_signs_of_life():
    """A router takes a connection for cut after 12 reports, which take 1.2 s or more."""
    assert 2 * call_server.BEAT_S + 0.1 < 1.2
    async with rig() as (steps, streams, address, _):
        steps.freeing.clear()
        taker = Taker()
        call = streams.to(address).begin(
            DecodeRequest(transfer="endless-slow-to-free"), PROMPT, taker
        )
        await eventually(lambda: taker.ids)
        call.cancel()
        await eventually(lambda: steps.begun and not streams.heard(address))
        await eventually(lambda: streams.heard(address))
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


async def test_a_router_that_begins_a_call_twice_loses_its_connection():
    async with rig() as (steps, _, address, server):
        lost: list[str] = []
        wire = Wire(lambda message: None, lost.append)
        await connector().connect(address, "calls", wire)
        command = Command(call=1, decode=DecodeRequest(transfer="endless", prompt=1))
        wire.send(RouterMessage(commands=[KEPT, command, command]).SerializeToString())
        await eventually(lambda: lost and not server.sessions)
        await eventually(lambda: steps.freed == steps.begun)


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
        await asyncio.wait_for(server.stop(), 30)
        steps.freeing.set()
        await eventually(lambda: steps.freed)
