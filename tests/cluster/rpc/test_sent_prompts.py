"""The prompts that calls share: sent once, kept while a call needs them, and then forgotten."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from cluster.rpc import client_stream
from cluster.rpc import server as call_server
from cluster.rpc.client_stream import CallStreams
from cluster.rpc.sent_prompts import SentPrompts
from engine.types.sampling_params import SamplingParams
from protos.calls_pb2 import Command, ForgetPrompt, RouterMessage
from protos.decode_pb2 import DecodeRequest
from protos.shared_prompt import SharedPrompt, sequence_from_proto
from protos.wire.framing import Wire
from tests.cluster.rpc.call_rig import Taker
from tests.cluster.rpc.ports import CallPort
from tests.eventually import eventually
from tests.protos.wire.rig import connector

CHOICES, TOKENS = 128, 16_384  # together the most that a request may have


def prompt(tokens=2):
    ids = tuple(1000 + token for token in range(tokens))
    return SharedPrompt(ids, SamplingParams(max_tokens=4, seed=1, stop=("a" * 1024,) * 16))


class Replica:
    """Serves calls that make a sequence, and wait until `going`."""

    def __init__(self):
        self.sequences = []
        self.going = asyncio.Event()
        self.port = CallPort({"decode": self.serve})

    async def serve(self, request, shared, queue):
        self.sequences.append(sequence_from_proto(request, shared))
        await self.going.wait()

    @property
    def kept(self):
        return [one for session in self.port.calls._sessions for one in session._prompts.values()]


@pytest.fixture
async def replica():
    found = Replica()
    yield found
    await found.port.stop()


@pytest.fixture
async def streams():
    found = CallStreams(connector())
    yield found
    await found.close()


@pytest.fixture
def sent(monkeypatch):
    """The lengths of all messages that are sent."""
    lengths, send = [], Wire.send

    def note(wire, message):
        lengths.append(len(message))
        send(wire, message)

    monkeypatch.setattr(Wire, "send", note)
    return lengths


async def test_a_replica_gets_the_prompt_of_many_choices_once(replica, streams, sent):
    shared, stream = prompt(TOKENS), streams.to(await replica.port.start())
    tracemalloc.start()
    try:
        for choice in range(CHOICES):
            stream.begin(DecodeRequest(transfer=f"r.{choice}", choice=choice), shared, Taker())
        await eventually(lambda: len(replica.sequences) == CHOICES)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(tuple(one.tokens) == shared.ids for one in replica.sequences)
    assert sum(sent) < len(shared.encoded) + 100 * CHOICES
    # Of each choice a replica has a list of its tokens, which are numbers that all lists share.
    lists = 8 * CHOICES * TOKENS
    assert held < lists + (4 << 20)
    assert most < lists + (8 << 20)


async def test_a_replica_keeps_a_prompt_until_its_last_call_has_ended(replica, streams, sent):
    stream, takers = streams.to(await replica.port.start()), [Taker() for _ in range(3)]
    shared, other = prompt(), prompt()
    first = stream.begin(DecodeRequest(transfer="1"), shared, takers[0])
    stream.begin(DecodeRequest(transfer="2"), shared, takers[1])
    stream.begin(DecodeRequest(transfer="3"), other, takers[2])
    await eventually(lambda: len(replica.sequences) == 3)
    assert len(replica.kept) == 2
    first.cancel()
    await eventually(lambda: takers[0].ended)
    stream.begin(DecodeRequest(transfer="4"), shared, Taker())
    await eventually(lambda: len(replica.sequences) == 4)
    assert len(replica.kept) == 2
    replica.going.set()
    await eventually(lambda: not replica.kept)
    # The next call of the same prompt brings it again.
    stream.begin(DecodeRequest(transfer="5"), shared, Taker())
    await eventually(lambda: len(replica.sequences) == 5)
    assert replica.sequences[4].tokens == list(shared.ids)


async def test_a_new_connection_gets_the_prompt_again(replica, streams):
    address, shared, taker = await replica.port.start(), prompt(), Taker()
    streams.to(address).begin(DecodeRequest(transfer="1"), shared, taker)
    await eventually(lambda: replica.sequences)
    await replica.port.calls.stop()
    await eventually(lambda: taker.error is not None)
    streams.to(address).begin(DecodeRequest(transfer="2"), shared, Taker())
    await eventually(lambda: len(replica.sequences) == 2)
    assert replica.sequences[1].tokens == list(shared.ids)


def test_an_end_that_is_noted_twice_counts_once():
    prompts, shared = SentPrompts(), prompt()
    assert prompts.hold(7, shared) == (7, [Command(call=7, prompt=shared.encoded)])
    assert prompts.hold(8, shared) == (7, [])
    assert not prompts.release(8)
    assert not prompts.release(8)
    assert not prompts.forget()
    assert prompts.release(7)
    assert prompts.forget() == [Command(call=7, forget=ForgetPrompt())]
    assert not prompts.forget()


async def test_prompts_are_forgotten_with_the_next_message(replica, streams, sent, monkeypatch):
    monkeypatch.setattr(client_stream, "_FORGET_S", 3600.0)
    stream, takers = streams.to(await replica.port.start()), [Taker() for _ in range(4)]
    replica.going.set()
    for number, taker in enumerate(takers):
        stream.begin(DecodeRequest(transfer=str(number)), prompt(), taker)
        await eventually(lambda taker=taker: taker.ended)
        # A call's own prompt is the only one left.
        assert len(replica.kept) == 1
    await asyncio.sleep(0.05)
    # The replica sends an end for each call, and the router a message for each begin.
    assert len(sent) == 2 * len(takers)


async def test_prompts_are_forgotten_in_time_without_a_message(replica, streams, monkeypatch):
    monkeypatch.setattr(client_stream, "_FORGET_S", 0.3)
    stream, taker = streams.to(await replica.port.start()), Taker()
    replica.going.set()
    stream.begin(DecodeRequest(transfer="1"), prompt(), taker)
    await eventually(lambda: taker.ended)
    began_s = asyncio.get_running_loop().time()
    assert replica.kept
    await eventually(lambda: not replica.kept)
    assert asyncio.get_running_loop().time() - began_s < 2.0


async def test_a_connection_that_ended_forgets_nothing_more(replica, streams, sent, monkeypatch):
    monkeypatch.setattr(client_stream, "_FORGET_S", 0.05)
    stream, taker = streams.to(await replica.port.start()), Taker()
    replica.going.set()
    stream.begin(DecodeRequest(transfer="1"), prompt(), taker)
    await eventually(lambda: taker.ended)
    await stream.close(0)
    before = len(sent)
    await asyncio.sleep(0.1)
    assert len(sent) == before


UNREADABLE = Command(call=1, prompt=b"\xff")
TOO_LONG = Command(call=1, prompt=SharedPrompt((1,), SamplingParams(stop=("a",) * 17)).encoded)
KEPT = [Command(call=number, prompt=prompt().encoded) for number in (1, 2, 3)]
CALL = Command(call=1, decode=DecodeRequest(prompt=9))


@pytest.mark.parametrize("commands", [[UNREADABLE], [TOO_LONG], [CALL], KEPT])
async def test_a_router_with_a_wrong_prompt_loses_its_connection(replica, monkeypatch, commands):
    monkeypatch.setattr(call_server, "_MOST_PROMPTS", 2)
    lost: list[str] = []
    wire = Wire(lambda message: None, lost.append)
    await connector().connect(await replica.port.start(), "calls", wire)
    wire.send(RouterMessage(commands=commands).SerializeToString())
    await eventually(lambda: lost and not replica.port.sessions)
    assert not replica.sequences
