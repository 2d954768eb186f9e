"""Answers to other routers: of this router alone, and sound for any bytes that come."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from cluster.console.news_feed import NewsFeed
from cluster.console.peer_news import PeerNews
from cluster.router.console import peer_server
from cluster.router.console.peer_server import PeerServer
from cluster.router.peers.peer_calls import MOST_ANSWER_BYTES, Peers
from cluster.router.rows.gathered_rows import GatheredRows
from cluster.telemetry.requests.row_clock import row_clock
from engine.errors import InvalidRequest, Unavailable
from protos.peer_pb2 import (
    BlockersQuestion,
    NewsQuestion,
    PeerAnswer,
    PeerQuestion,
    ReplicaWait,
    RowsQuestion,
    StopQuestion,
)
from protos.router_pb2 import ListRequestsRequest
from protos.wire.streams import FrameStream
from tests.cluster.console.scripted_source import NOW, ScriptedSource, choice, row
from tests.cluster.router.peers.rig import answering, record
from tests.eventually import eventually
from tests.protos.wire.rig import connector


def nobody():
    raise AssertionError("a router that is asked asks another one")


@pytest.fixture
async def asked():
    """Asks a router that has the row `r` and runs the request `runs`."""
    source = ScriptedSource()
    source.rows.add(row("r", NOW, choice()))
    stopped = []

    def stop_here(request_id, tenant, operator):
        stopped.append((request_id, tenant, operator))
        return request_id == "runs"

    rows = GatheredRows(source.rows, Peers("there", nobody, connector()))
    server = PeerServer(NewsFeed(source, lambda: NOW), rows, stop_here)
    async with answering(server.serve) as address:
        there = record("there", address)
        async with Peers("here", lambda: [there], connector()).line(there) as line:
            yield line, stopped


async def test_it_tells_news_and_rows_and_stops_requests_one_after_the_other(asked):
    line, stopped = asked
    answer = await line.ask(PeerQuestion(news=NewsQuestion()))
    assert PeerNews.from_json(answer.news).rows[0]["request_id"] == "r"
    answer = await line.ask(PeerQuestion(rows=RowsQuestion()))
    assert json.loads(answer.rows.rows[0])["request_id"] == "r" and answer.rows.held == 1
    for name in ("runs", "ended"):
        stop = StopQuestion(request_id=name, tenant="acme", operator="alice")
        assert (await line.ask(PeerQuestion(stop=stop))).stop.found is (name == "runs")
    assert stopped == [("runs", "acme", "alice"), ("ended", "acme", "alice")]


@pytest.mark.parametrize(
    "wrong", [{"limit": 9999}, {"since_s": -1}, {"endpoint": "x" * 9999}, {"request_id": "\n"}]
)
async def test_a_wrong_question_is_refused_and_the_next_one_answered(asked, wrong):
    line, _ = asked
    rows = RowsQuestion(wanted=ListRequestsRequest(**wrong))
    with pytest.raises(InvalidRequest):
        await line.ask(PeerQuestion(rows=rows))
    assert (await line.ask(PeerQuestion(rows=RowsQuestion()))).rows.held == 1


async def test_an_answer_that_is_too_large_is_refused(asked, monkeypatch):
    monkeypatch.setattr(peer_server, "MOST_ANSWER_BYTES", 100)
    with pytest.raises(InvalidRequest, match="too large"):
        await asked[0].ask(PeerQuestion(rows=RowsQuestion()))


async def test_a_router_that_asks_nothing_or_reads_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(peer_server, "IDLE_S", 0.2)
    source = ScriptedSource()
    for number in range(1000):
        source.rows.add(row(f"r{number}", NOW, choice()))
    rows = GatheredRows(source.rows, Peers("there", nobody, connector()))
    ended = []

    async def serve(stream):
        server = PeerServer(NewsFeed(source, lambda: NOW), rows, lambda *names: False)
        try:
            await server.serve(stream)
        except Unavailable as error:
            ended.append(error.message)
            raise

    async with answering(serve) as address:
        silent, deaf = FrameStream(MOST_ANSWER_BYTES), FrameStream(MOST_ANSWER_BYTES)
        await connector().connect(address, "peer", silent.wire)
        await asyncio.wait_for(silent.ended(), 10)
        await connector().connect(address, "peer", deaf.wire)
        deaf.wire.pause()
        question = PeerQuestion(rows=RowsQuestion(wanted=ListRequestsRequest(limit=1000)))
        for _ in range(20):
            deaf.wire.send(question.SerializeToString())
        await eventually(lambda: len(ended) == 2)
        deaf.close()
    assert ended == 2 * ["it did not answer for 0.2 s"]


async def test_blockers_are_told_with_the_clock_of_the_rows(asked):
    line, _ = asked
    wait = ReplicaWait(
        stage="prefill_queue", replica="prefill-0", begin_at=NOW - 99, end_at=NOW + 99
    )
    before = row_clock()
    answer = await line.ask(PeerQuestion(blockers=BlockersQuestion(waits=[wait])))
    (found,) = map(json.loads, answer.blockers.blockers)
    assert (found["request_id"], found["replica"]) == ("r", "prefill-0")
    assert before <= answer.asked_at <= answer.answered_at <= row_clock()
    assert abs(line.clock.ahead_s) <= line.clock.error_s + 1e-6
    odd = [ReplicaWait(stage="of a later version"), ReplicaWait(begin_at=float("nan"), least_s=-1)]
    answer = await line.ask(PeerQuestion(blockers=BlockersQuestion(waits=odd)))
    assert not answer.blockers.blockers


async def test_any_bytes_get_an_answer():
    rng = random.Random(7)
    source = ScriptedSource()
    rows = GatheredRows(source.rows, Peers("there", nobody, connector()))
    server = PeerServer(NewsFeed(source, lambda: NOW), rows, lambda *names: False)
    wait = ReplicaWait(stage="prefill_queue", replica="prefill-0", begin_at=NOW, end_at=NOW + 1)
    sound = (
        PeerQuestion(rows=RowsQuestion(wanted=ListRequestsRequest(endpoint="chat", limit=5))),
        PeerQuestion(blockers=BlockersQuestion(waits=[wait])),
    )

    class Stream:
        """Reads mutated questions, and keeps the answers."""

        def __init__(self):
            self.answers = []

        async def read(self):
            if len(self.answers) == 500:
                raise EOFError
            one = rng.choice(sound)
            data = bytearray(one.SerializeToString() + rng.randbytes(rng.randrange(8)))
            for _ in range(rng.randrange(5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            return bytes(data)

        async def write(self, data):
            self.answers.append(PeerAnswer.FromString(data))

    stream = Stream()
    with pytest.raises(EOFError):
        await server.serve(stream)
    assert all(one.WhichOneof("answer") for one in stream.answers)
    kinds = {one.failure.kind for one in stream.answers if one.HasField("failure")}
    assert kinds == {"InvalidRequest"}
