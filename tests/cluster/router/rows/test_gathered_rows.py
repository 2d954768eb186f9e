"""Rows of all routers: in one order, each with its router, and no bad answer among them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import pytest

from cluster.console.ttft_sample import TtftSample
from cluster.router.rows.gathered_rows import GatheredRows, rows_question
from cluster.router.rows.tenant_figures import busiest
from cluster.telemetry.requests.row_clock import row_clock
from cluster.telemetry.requests.store import RequestStore, RowFilter
from engine.errors import InvalidRequest
from protos.peer_pb2 import PeerAnswer, PeerQuestion, RowsAnswer, RowsQuestion
from protos.router_pb2 import ListRequestsRequest
from tests.cluster.console.scripted_source import NOW, choice, row
from tests.cluster.router.peers.rig import peers_of, saying


def store(*names, ttft_s=0.1):
    rows = RequestStore()
    for at, name in enumerate(names):
        rows.add(row(name, NOW + at, choice(ttft_s)))
    return rows


def other(rows):
    """A router with these rows."""

    async def serve(stream):
        there = GatheredRows(rows, None)
        while True:
            question = PeerQuestion.FromString(await stream.read())
            answer = PeerAnswer(rows=await there.answer(question.rows))
            await stream.write(answer.SerializeToString())

    return serve


def told(text):
    """A row of another router with these fields more."""
    return '{"request_id": "b", "received_at": 1, ' + text + "}"


def names_of(found):
    return [one["request_id"] for one in found.rows]


async def test_rows_of_all_routers_come_in_the_order_of_the_filter():
    here, there = store("a", "-", "c", ttft_s=0.2), store("-", "b", "-", "d")
    async with peers_of(other=other(there)) as (peers, _):
        rows = GatheredRows(here, peers)
        found = await rows.gather(rows_question(RowFilter(limit=3)))
        assert names_of(found) == ["d", "c", "-"]
        assert [one["router"] for one in found.rows[:2]] == ["other", "here"]
        assert (found.held, found.silent) == (7, {})
        slowest = await rows.gather(rows_question(RowFilter(slowest=True, limit=4)))
        assert names_of(slowest)[:3] == ["c", "-", "a"]
        both = await rows.gather(rows_question(RowFilter(request_id="-"), for_console=True))
        assert {one["router"] for one in both.rows} == {"here", "other"}
        assert all(f"router {one['router']}" in one["words"]["request"][0] for one in both.rows)
        rises = RowsQuestion(wanted=ListRequestsRequest(rises=True, since_s=1e12))
        assert (await rows.gather(rises)).first_tokens == []
        with pytest.raises(InvalidRequest):
            await rows.gather(RowsQuestion(wanted=ListRequestsRequest(limit=5000)))


async def test_the_slowest_that_got_a_token_are_found_behind_many_refusals():
    here = store("a")
    for number in range(60):
        here.add(row(f"r{number}", NOW, outcome="Refused", total_s=9.0))
    async with peers_of(other=other(store("b", ttft_s=0.2))) as (peers, _):
        wanted = ListRequestsRequest(slowest=True, answered=True, limit=50, figures=True)
        found = await GatheredRows(here, peers).gather(RowsQuestion(wanted=wanted))
    assert names_of(found) == ["b", "a"]
    assert sum(one.requests for one in found.figures) == 62, "of all requests"


async def test_figures_are_of_the_time_for_which_the_oldest_router_has_rows():
    now = row_clock()
    young, old = (RequestStore(since=now - age_s) for age_s in (5.0, 120.0))
    wanted = ListRequestsRequest(figures=True, since_s=300.0)
    async with peers_of(other=other(old)) as (peers, _):
        alone = await GatheredRows(young, None).answer(RowsQuestion(wanted=wanted))
        both = await GatheredRows(young, peers).gather(RowsQuestion(wanted=wanted))
        wanted.since_s = 60.0
        last = await GatheredRows(young, peers).gather(RowsQuestion(wanted=wanted))
    passed_s = row_clock() - now
    assert 5.0 <= alone.observed_s <= 5.0 + passed_s
    assert 120.0 <= both.observed_s <= 120.0 + passed_s
    assert last.observed_s == 60.0
    just = await GatheredRows(RequestStore(), None).answer(RowsQuestion(wanted=wanted))
    assert just.observed_s >= 1.0


async def test_a_router_that_does_not_tell_how_old_it_is_counts_as_old():
    answer = PeerAnswer(rows=RowsAnswer())
    wanted = RowsQuestion(wanted=ListRequestsRequest(figures=True, since_s=300.0))
    async with peers_of(older=saying(lambda question: answer)) as (peers, _):
        found = await GatheredRows(RequestStore(), peers).gather(wanted)
    assert found.observed_s == 300.0


@pytest.mark.parametrize(
    "bad",
    [
        *("{", "[]", "{}", "7", '{"received_at": 1}'),
        *(told('"received_at": "late"'), told('"received_at": null')),
        *(told('"ttft_s": NaN'), told('"ttft_s": 1e999'), told('"stages": [["prefill", 0, NaN]]')),
        *(told('"tenant": ["acme"]'), told('"request_id": 7')),
    ],
)
async def test_rows_that_cannot_be_read_are_a_reason(bad):
    answer = PeerAnswer(rows=RowsAnswer(rows=[told('"total_s": 1'), bad]))
    async with peers_of(odd=saying(lambda question: answer)) as (peers, _):
        found = await GatheredRows(store("a"), peers).gather(RowsQuestion())
    assert names_of(found) == ["a"]
    assert found.silent == {"odd": "its rows cannot be read"}


async def test_first_tokens_explain_rises_though_the_wall_clock_stepped(monkeypatch):
    rows, wall = RequestStore(), time.time()
    rows.add(row("a", row_clock() - 5, choice()))
    monkeypatch.setattr(time, "time", lambda: wall + 3600)
    wanted = RowsQuestion(wanted=ListRequestsRequest(rises=True))
    answer = await GatheredRows(rows, None).answer(wanted)
    assert len(json.loads(answer.first_tokens)) == 1


SHORT = asdict(TtftSample(NOW, "chat", "acme", "prefill-0", 0.3, (0.1, 0.2)))


@pytest.mark.parametrize("bad", [{"at": 1}, SHORT])
async def test_first_tokens_that_cannot_be_read_are_a_reason(bad):
    answer = PeerAnswer(rows=RowsAnswer(first_tokens=json.dumps([bad]).encode()))
    async with peers_of(odd=saying(lambda question: answer)) as (peers, _):
        found = await GatheredRows(store("a"), peers).gather(RowsQuestion())
    assert found.silent == {"odd": "its rows cannot be read"}


def using(running):
    caps = {"concurrent": {"used": running, "here": 8, "cap": 16}}
    return {"acme": {"weight": 1.0, "served": 1.0, "waiting_requests": 1, "caps": caps}}


async def test_tenants_are_counted_over_all_routers():
    wanted = RowsQuestion(wanted=ListRequestsRequest(figures=True))
    there = GatheredRows(store("b", "c"), None, lambda: using(3))

    async def serve(stream):
        await stream.read()
        await stream.write(PeerAnswer(rows=await there.answer(wanted)).SerializeToString())

    async with peers_of(other=serve) as (peers, _):
        found = await GatheredRows(store("a"), peers, lambda: using(2)).gather(wanted)
    (acme,) = busiest(found.tenants, found.shares)
    assert (acme.requests, acme.running, acme.waiting) == (3, 5, 2)
    assert acme.cap == "5 of 16 running"


@pytest.mark.parametrize("bad", [b"{", b"[]", b'{"acme": {}}', json.dumps(using(-9)).encode()])
async def test_shares_that_cannot_be_read_are_a_reason(bad):
    answer = PeerAnswer(rows=RowsAnswer(shares=bad))
    async with peers_of(odd=saying(lambda question: answer)) as (peers, _):
        wanted = RowsQuestion(wanted=ListRequestsRequest(figures=True))
        found = await GatheredRows(store("a"), peers, lambda: using(1)).gather(wanted)
    assert found.silent == {"odd": "its rows cannot be read"}
    assert found.shares == using(1)
