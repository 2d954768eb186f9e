"""Answers to other routers: of this router alone, and sound for any bytes that come."""

from __future__ import annotations

import json
import random

import pytest

from cluster.console.news_feed import NewsFeed
from cluster.console.peer_news import PeerNews
from cluster.router.console import peer_server
from cluster.router.console.peer_server import PeerServer
from cluster.router.peers.peer_calls import Peers
from cluster.router.rows.gathered_rows import GatheredRows
from engine.errors import InvalidRequest
from protos.peer_pb2 import NewsQuestion, PeerAnswer, PeerQuestion, RowsQuestion, StopQuestion
from protos.router_pb2 import ListRequestsRequest
from tests.cluster.console.scripted_source import NOW, ScriptedSource, choice, row
from tests.cluster.router.peers.rig import answering, record
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


async def test_any_bytes_get_an_answer():
    rng = random.Random(7)
    source = ScriptedSource()
    rows = GatheredRows(source.rows, Peers("there", nobody, connector()))
    server = PeerServer(NewsFeed(source, lambda: NOW), rows, lambda *names: False)
    sound = PeerQuestion(rows=RowsQuestion(wanted=ListRequestsRequest(endpoint="chat", limit=5)))

    class Stream:
        """Reads mutated questions, and keeps the answers."""

        def __init__(self):
            self.answers = []

        async def read(self):
            if len(self.answers) == 500:
                raise EOFError
            data = bytearray(sound.SerializeToString() + rng.randbytes(rng.randrange(8)))
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
