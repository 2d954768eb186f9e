"""Questions to other routers: a deadline for each, a reason for each silence, members alone."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from cluster.router.peers.peer_calls import MOST_PEERS, Peers
from engine.errors import InvalidRequest, NotFound, Unavailable
from protos.peer_pb2 import PeerAnswer, PeerQuestion, RowsAnswer, StopAnswer, StopQuestion
from protos.status import failure_to_proto
from tests.cluster.router.peers.rig import answering, peers_of, record, saying
from tests.protos.wire.rig import OTHER_SECRET, connector

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
        answers = await peers.ask_all(QUESTION, timeout_s=0.2)
        assert time.monotonic() - began_s < 2
    assert answers.found == {"one": FOUND}
    assert answers.silent == {"frozen": "it did not answer for 0.2 s"}


async def test_a_port_that_takes_connections_and_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        peers = Peers("here", lambda: [record("frozen", address)], connector())
        answers = await peers.ask_all(QUESTION, timeout_s=0.2)
    assert "frozen" in answers.silent


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
