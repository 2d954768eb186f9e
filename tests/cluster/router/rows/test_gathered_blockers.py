"""What a request waited behind in other routers, whose clocks differ from this router's."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cluster.console.news_feed import NewsFeed
from cluster.router.console.peer_server import PeerServer
from cluster.router.peers.peer_calls import Peers
from cluster.router.rows.gathered_rows import GatheredRows, rows_question
from cluster.telemetry.requests.behind import with_blockers
from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.row_clock import row_clock
from cluster.telemetry.requests.store import RequestStore, RowFilter
from protos.peer_pb2 import BlockersAnswer, PeerAnswer, RowsAnswer
from tests.cluster.console.scripted_source import ScriptedSource
from tests.cluster.router.peers.rig import peers_of, record, saying

# The time of this router. It stands still, so that a question takes none, however busy the machine.
NOW = row_clock()
# The moment from which the rows count.
BEGAN_AT = NOW - 20.0


def row(name, after_s, *, ahead_s=0.0, **times):
    """A row of a router whose clock is ahead; it came `after_s` behind a common moment."""
    given = {"prefill_replica": "p0", "decode_replica": "d0", "sent_s": 0.0} | times
    choice = ChoiceRow(0, "handed_over", **given)
    received_at = BEGAN_AT + after_s + ahead_s
    return RequestRow(
        *(name, "chat", "v", "ok", "acme"),
        received_at=received_at,
        total_s=5.0,
        prompt_tokens=7,
        choices=(choice,),
    )


def store(*rows):
    found = RequestStore()
    for one in rows:
        found.add(one)
    return found


@asynccontextmanager
async def beside(**serves):
    """The peers of this router, which is beside those."""
    async with peers_of(**serves) as (peers, _):
        peers.now = lambda: NOW
        yield peers


def router(ahead_s, *rows):
    """A router with these rows, whose clock is ahead."""
    there = GatheredRows(store(*rows), Peers("there", list, None))
    return PeerServer(
        NewsFeed(ScriptedSource()), there, lambda *_: False, lambda: NOW + ahead_s
    ).serve


async def explained(peers, here, name="late", *, for_console=False):
    question = rows_question(RowFilter(request_id=name), for_console=for_console)
    (found,) = (await GatheredRows(here, peers).gather(question)).rows
    return found


def named(found):
    return [
        (one["request_id"], one.get("router"), round(one["seconds"], 1)) for one in found["behind"]
    ]


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0])
async def test_prompts_of_another_router_are_named_whatever_its_clock_says(ahead_s):
    there = [
        row("theirs", 0.0, ahead_s=ahead_s, queue_s=0.5, prefill_s=2.0),
        row("elsewhere", 0.0, ahead_s=ahead_s, queue_s=0.5, prefill_s=2.0, prefill_replica="p1"),
        # By its own clock, and not by ours, it was computed while the request waited.
        row("by the clock", -ahead_s or 10.0, ahead_s=ahead_s, queue_s=1.5, prefill_s=1.0),
    ]
    late = row("late", 1.0, queue_s=3.0, prefill_s=0.1, ttft_s=3.2)
    own = row("own", 1.0, queue_s=1.5, prefill_s=1.0)
    async with beside(other=router(ahead_s, *there)) as peers:
        found = await explained(peers, store(own, late))
        assert named(found) == [("theirs", "other", 1.5), ("own", None, 1.0)]
        assert found["router"] == "here" and "behind_without" not in found
        view = await explained(peers, store(own, late), for_console=True)
        words = " ".join(view["words"]["0"])
        assert re.search(
            r"behind theirs \(acme, chat, 7 prompt tokens, 1\.50 s, of other\), own", words
        )


@pytest.mark.parametrize("ahead_s", [0.0, 300.0])
async def test_a_row_of_another_router_is_compared_with_those_of_this_router_and_of_a_third(
    ahead_s,
):
    late = row("late", 1.0, ahead_s=ahead_s, queue_s=3.0, prefill_s=0.1)
    third = row("third", 0.0, ahead_s=-50.0, offered_s=0.0, queue_s=0.5, prefill_s=2.0)
    own = row("own", 1.0, queue_s=1.5, prefill_s=1.0)
    async with beside(other=router(ahead_s, late), third=router(-50.0, third)) as peers:
        found = await explained(peers, store(own))
    assert found["router"] == "other"
    assert named(found) == [("third", "third", 1.5), ("own", "here", 1.0)]


async def test_the_streams_that_filled_a_decode_replica_are_named_too():
    there = row("theirs", 0.0, ttft_s=0.5, ttlt_s=2.5)
    late = row("late", 1.0, offered_s=0.5, decode_admitted_s=2.0)
    there = replace(there, received_at=there.received_at + 7)
    async with beside(other=router(7.0, there)) as peers:
        found = await explained(peers, store(late))
    assert named(found) == [("theirs", "other", 1.0)]
    assert found["behind"][0]["stage"] == "decode_admission"


async def test_what_cannot_be_said_is_left_out_and_why():
    """An older router tells no clock, or does not know the question; another one has gone."""
    old = PeerAnswer(rows=RowsAnswer())
    late = row("late", 1.0, queue_s=3.0)

    def odd(question):
        answer = PeerAnswer(rows=RowsAnswer())
        if question.HasField("blockers"):
            answer = PeerAnswer(blockers=BlockersAnswer(blockers=['{"seconds": "long"}']))
        answer.asked_at, answer.answered_at = NOW, NOW
        return answer

    async with beside(old=saying(lambda question: old), odd=saying(odd)) as peers:
        peers.gone([record("dead", ""), record("odd", "")])
        found = await explained(peers, store(late))
    without = found["behind_without"]
    assert found["behind"] == []
    assert without.keys() == {"old", "odd", "dead"}
    assert without["old"] == "its version does not tell its clock"
    assert without["odd"] == "its answer cannot be read"
    assert without["dead"] == "it left 0 s ago, and its rows are gone"


async def test_who_had_a_replica_for_less_than_the_clocks_are_known_is_not_named(monkeypatch):
    """Here the error of the clocks is 2 s, because the other router is slow to read."""
    there = row("theirs", 0.0, queue_s=0.5, prefill_s=2.0)
    late = row("late", 1.0, queue_s=3.0)
    async with beside(other=router(0.0, there)) as peers:
        assert named(await explained(peers, store(late)))
        monkeypatch.setattr("cluster.router.peers.clocks.ClockDifference.error_at", lambda *_: 1.0)
        assert named(await explained(peers, store(late))) == []


async def test_a_request_that_waited_for_nothing_costs_no_question():
    asked = []

    def answer(question):
        asked.append(question.WhichOneof("question"))
        return PeerAnswer(rows=RowsAnswer())

    async with beside(other=saying(answer)) as peers:
        await explained(peers, store(row("late", 1.0)))
        await GatheredRows(store(), peers).gather(rows_question(RowFilter()))
    assert asked == ["rows", "rows"]


async def test_an_id_that_nobody_has_names_the_routers_that_are_gone():
    async with beside(other=router(0.0)) as peers:
        rows = GatheredRows(store(), peers)
        peers.gone([record("dead", "")])
        found = await rows.gather(rows_question(RowFilter(request_id="r")))
        assert found.silent == {"dead": "it left 0 s ago, and its rows are gone"}
        assert (await rows.gather(rows_question(RowFilter()))).silent == {}


WHOLE = with_blockers(
    row("late", 1.0, queue_s=3.0, prefill_s=0.1, ttft_s=3.2),
    [row("own", 1.0, queue_s=1.5, prefill_s=1.0)],
)
(BEHIND,), (CHOICE,) = WHOLE["behind"], WHOLE["choices"]
AT_ONCE = {"stage": "prefill", "begin_s": -1.0, "end_s": 0.0}


@pytest.mark.parametrize(
    "bad",
    [
        {"behind": [{"choice": 0}], "choices": []},
        {"behind": [{"choice": 0, "seconds": 1.0}], "choices": []},
        {"behind": [], "choices": [{"choice": 0, "queue_s": "long"}]},
        {"behind": [], "choices": 7},
        {"choices": None},
        {"behind": [BEHIND | {"choice": "0"}], "choices": []},
        {"behind": [BEHIND | {"stage": ["prefill_queue"]}], "choices": []},
        {"behind": [BEHIND | {"seconds": "1"}], "choices": []},
        {"behind": [], "choices": [CHOICE | {"choice": "first"}]},
        {"behind": [], "choices": [CHOICE | {"choice": None}]},
        {"behind": [], "choices": [CHOICE | {"prefill_replica": 7}]},
        {"behind": [], "choices": [CHOICE | {"stages": [{"stage": "prefill"}]}]},
        {"received_at": float("nan"), "behind": [], "choices": []},
        {"received_at": 1e17, "behind": [], "choices": []},
        {"behind": [], "choices": [CHOICE | {"ttft_s": 0.0, "stages": [AT_ONCE]}]},
        "[" * 100_000,
    ],
)
async def test_a_bad_row_of_another_router_is_a_reason(bad):
    text = bad if isinstance(bad, str) else json.dumps(WHOLE | bad)
    answer = PeerAnswer(rows=RowsAnswer(rows=[text]))
    async with beside(odd=saying(lambda question: answer)) as peers:
        found = await GatheredRows(store(row("late", 1.0)), peers).gather(
            rows_question(RowFilter(request_id="late"))
        )
    assert found.silent == {"odd": "its rows cannot be read"}
    assert len(found.rows) == 1
