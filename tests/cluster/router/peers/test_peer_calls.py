"""Questions to other routers: a deadline for each, a reason for each silence, members alone."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import asynccontextmanager

import pytest

from cluster.replica_record import ReplicaRecord
from cluster.router.peers.peer_calls import MOST_ANSWER_BYTES, MOST_PEERS, Peers
from engine.errors import InvalidRequest, NotFound, Unavailable
from protos.peer_pb2 import (
    PeerAnswer,
    PeerQuestion,
    RowsAnswer,
    RowsQuestion,
    StopAnswer,
    StopQuestion,
)
from protos.status import failure_to_proto
from tests.cluster.router.peers.rig import answering, peers_of, record, saying
from tests.protos.wire.rig import OTHER_SECRET, SECRET, connector, listening

QUESTION = PeerQuestion(stop=StopQuestion(request_id="r", tenant="acme", operator="alice"))
FOUND, MISSED = (PeerAnswer(stop=StopAnswer(found=one)) for one in (True, False))


async def never(stream):
    """A frozen router: it takes the question and does not answer."""
    await stream.read()
    await asyncio.Event().wait()


async def test_all_other_routers_are_asked_and_no_replica():
    asked = []
    note = lambda question: asked.append(question) or MISSED  # noqa: E731
    async with peers_of(one=saying(note), two=saying(note)) as (peers, _):
        answers = await peers.ask_all(QUESTION)
    assert answers.found == {"one": MISSED, "two": MISSED}
    assert answers.silent == {} and asked == [QUESTION, QUESTION]


async def test_a_router_that_does_not_answer_is_named_and_the_others_count():
    async with peers_of(frozen=never, one=saying(lambda question: FOUND)) as (peers, _):
        began_s = time.monotonic()
        answers = await peers.ask_all(QUESTION, timeout_s=1.0)
        assert time.monotonic() - began_s < 10
    assert answers.found == {"one": FOUND}
    assert answers.silent == {"frozen": "it did not answer for 1 s"}


async def test_a_port_that_takes_connections_and_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        peers = Peers("here", lambda: [record("frozen", address)], connector())
        answers = await peers.ask_all(QUESTION, timeout_s=0.2)
    assert "frozen" in answers.silent


@pytest.mark.parametrize("address", ["nothing", "127.0.0.1:", "127.0.0.1:99999", "\0:1"])
async def test_a_router_with_an_odd_address_is_named_and_hides_no_other(address):
    async with peers_of(one=saying(lambda question: FOUND)) as (peers, records):
        records.append(record("odd", address))
        answers = await peers.ask_all(QUESTION)
    assert answers.found == {"one": FOUND}
    assert answers.silent["odd"].startswith("no connection: ")


async def test_the_answer_that_is_wanted_ends_the_wait():
    async with peers_of(frozen=never, one=saying(lambda question: FOUND)) as (peers, _):
        began_s = time.monotonic()
        answers = await peers.ask_all(QUESTION, lambda one: one.stop.found, timeout_s=30)
        assert time.monotonic() - began_s < 10
    assert answers.found == {"one": FOUND}


async def hangs_up(stream):
    await stream.read()
    stream.close()


async def nonsense(stream):
    await stream.read()
    await stream.write(b"\xff\xff\xff")


class RawRouter(asyncio.Protocol):
    """Answers any question with these bytes, again and again, without a frame."""

    def __init__(self, answer, again_s):
        self.answer, self.again_s = answer, again_s

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(self.answer)
        asyncio.get_running_loop().call_later(self.again_s, self.data_received, b"")


@asynccontextmanager
async def beside(answer, again_s=60.0):
    """The peers of a router beside which such a router is, and one that answers."""
    async with (
        listening({"peer": lambda: RawRouter(answer, again_s)}, SECRET) as odd,
        answering(saying(lambda question: FOUND)) as address,
    ):
        records = [record("odd", odd.address), record("one", address)]
        yield Peers("here", lambda: records, connector())


ALIVE = bytes(4)


@pytest.mark.parametrize("answer", [b"\0\0", (100).to_bytes(4, "big") + b"half", ALIVE])
async def test_half_an_answer_and_signs_of_life_are_none_in_time(answer):
    async with beside(answer, 0.01 if answer == ALIVE else 60.0) as peers:
        began_s = time.monotonic()
        answers = await peers.ask_all(QUESTION, timeout_s=1.0)
        assert time.monotonic() - began_s < 10
    assert answers.found == {"one": FOUND}
    assert answers.silent == {"odd": "it did not answer for 1 s"}


async def test_a_huge_answer_is_refused_by_its_length_alone():
    async with beside((1 << 31).to_bytes(4, "big")) as peers:
        answers = await peers.ask_all(QUESTION, timeout_s=30)
    most = MOST_ANSWER_BYTES
    assert answers.silent == {"odd": f"a message of {1 << 31} bytes came, and {most} are the most"}


async def test_a_large_answer_is_read_and_a_long_reason_is_cut():
    large = PeerAnswer(rows=RowsAnswer(rows=["x" * 1000] * 1000))
    failed = PeerAnswer(failure=failure_to_proto(NotFound("none")))
    failed.failure.message = "why\n" * 100_000
    serves = {"large": saying(lambda question: large), "failed": saying(lambda question: failed)}
    async with peers_of(**serves) as (peers, _):
        answers = await peers.ask_all(PeerQuestion(rows=RowsQuestion()))
    assert answers.found == {"large": large}
    reason = answers.silent["failed"]
    assert reason.startswith("why why") and len(reason) < 1000


async def test_routers_that_left_are_remembered_for_an_hour():
    now = 1e9
    peers = Peers("here", lambda: [record("back", "")], connector(), lambda: now)
    lost = [record(name, "") for name in ("here", "back", "early")]
    peers.gone([*lost, ReplicaRecord("decode-0", "decode", "", 1)])
    now += 100.0
    peers.gone([record("late", "")])
    assert peers.gone_since(0.0).keys() == {"early", "late"}
    assert peers.gone_since(now - 50.0) == {"late": "it left 0 s ago, and its rows are gone"}
    now += 3550.0
    assert peers.gone_since(0.0) == {"late": "it left 59 min ago, and its rows are gone"}
    peers.gone(record(f"r{number}", "") for number in range(100))
    assert len(peers.gone_since(0.0)) == 16


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (hangs_up, "the connection ended"),
        (nonsense, "its answer cannot be read"),
        (saying(lambda question: PeerAnswer(rows=RowsAnswer())), "it does not know the question"),
        (None, "its version answers no other router"),
    ],
)
async def test_what_is_no_answer_is_a_reason(serve, reason):
    async with peers_of(other=serve) as (peers, records):
        assert (await peers.ask_all(QUESTION)).silent == {"other": reason}
        with pytest.raises(Unavailable):
            async with peers.line(records[-1]) as line:
                await line.ask(QUESTION)


@pytest.mark.parametrize("error", [NotFound("none"), InvalidRequest("wrong")])
async def test_an_error_of_the_other_router_is_raised_as_it_was(error):
    failed = PeerAnswer(failure=failure_to_proto(error))
    async with (
        peers_of(other=saying(lambda question: failed)) as (peers, records),
        peers.line(records[-1]) as line,
    ):
        with pytest.raises(type(error), match=error.message):
            await line.ask(QUESTION)


async def test_a_router_with_another_secret_is_told_nothing():
    asked = []
    async with answering(saying(asked.append), OTHER_SECRET) as address:
        peers = Peers("here", lambda: [record("other", address)], connector())
        answers = await peers.ask_all(QUESTION)
    assert not asked
    assert "cluster's secret" in answers.silent["other"]


async def test_a_dead_router_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    peers = Peers("here", lambda: [record("dead", address)], connector())
    assert "no connection" in (await peers.ask_all(QUESTION)).silent["dead"]


async def test_so_many_routers_are_asked_and_the_rest_is_named():
    records = [record(f"r{number:02}", "") for number in range(MOST_PEERS + 2)]
    answers = await Peers("here", lambda: records, connector()).ask_all(QUESTION)
    assert len(answers.silent) == MOST_PEERS + 2
    assert "more than 32" in answers.silent["r33"]
