"""News between routers: read as written, counted once, and never able to end a feed."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from cluster.console.counts import CountLog, Counts
from cluster.console.model import ConsoleModel
from cluster.console.news_feed import NewsFeed
from cluster.console.peer_news import PeerNews, PeersTold, RunningNews, merged_tenants
from cluster.console.rise.lengths import TextLength
from cluster.console.source import RunningView
from cluster.console.ttft_sample import TtftSample
from engine.errors import Unavailable
from tests.cluster.console.scripted_source import NOW, ScriptedSource, choice, row
from tests.cluster.console.test_model import first_tokens, points


def tenant(used, here, served=1.0):
    caps = {"concurrent": {"used": used, "here": here, "cap": 10}}
    return {"weight": 1.0, "served": served, "waiting_requests": 1, "caps": caps}


def there():
    """A router whose request `a` runs and whose request `b` ended."""
    source = ScriptedSource()
    one = choice(transfer_bytes=3_000_000, transfer_end_s=0.2)
    moved = (("prefill-0", "decode-0", 3_000_000),)
    named = ("a", "acme", "chat", "interactive", NOW - 2, 0.1)
    source.views = [RunningView(*named, tokens=3, first_choice=lambda: one, moved=moved)]
    source.rows.add(row("b", NOW - 3, choice()))
    source.rows.add(row("c", NOW - 3, outcome="Refused", refused_for="ttft"))
    source.sections["tenants"] = {"acme": tenant(1, 5)}
    return source


def told(news, *, name="router-1"):
    return PeersTold(((name, news),), {name: news.running})


async def test_another_router_counts_what_this_one_counts():
    own = ConsoleModel(there(), clock=lambda: NOW)
    await own.catch_up()
    expected = own.changes()
    news = PeerNews.from_json((await NewsFeed(there(), lambda: NOW).news(0, 0)).to_json())
    here = ScriptedSource()
    here.told = told(news)
    model = ConsoleModel(here, clock=lambda: NOW)
    changes = model.changes()
    assert (news.observed_s, changes["since"]) == (3600.0, NOW - 3600)
    assert changes["series"] == expected["series"]
    assert first_tokens(changes) == 2
    assert changes["links"] == expected["links"] and changes["links"]
    acme = {"tokens": 10, "requests": 2, "refused": 1}
    assert changes["served"] == expected["served"] == {"acme": acme}
    assert [point["refused"] for point in points(changes) if point["refused"]] == [{"ttft": 1}]
    (running,) = changes["running"]["rows"]
    assert running == expected["running"]["rows"][0] | {"router": "router-1"}
    assert (changes["running"]["count"], changes["running"]["waiting"]) == (1, 0)
    whole = model.whole()["rows"]
    assert [one["request_id"] for one in whole] == ["b", "c"]
    assert all(one["router"] == "router-1" for one in whole)
    # A router that answers no more takes its running requests with it.
    assert model.changes()["running"] == {**{"count": 0, "waiting": 0, "stalled": 0, "rows": []}}


async def test_the_length_of_an_answer_is_told_once_and_at_its_first_token():
    source, counts = there(), Counts()
    source.rows.add(row("d", NOW - 5, choice(), completion_tokens=7))
    feed = NewsFeed(source, lambda: NOW)
    news = await feed.news(0, 0)
    again = await feed.news(news.counts_at, news.rows_at)
    assert again.answers == ()
    # One request runs, and one had no answer.
    assert news.answers == (TextLength(NOW - 5 + 0.1, "acme", 7),)
    told(news).count(counts, 0.0)
    assert list(counts.answers) == list(news.answers)
    here = ScriptedSource()
    here.rows.add(row("d", NOW - 5, choice(), completion_tokens=7))
    own = Counts()
    await ConsoleModel(here, lambda: NOW, own).catch_up()
    assert list(own.answers) == list(news.answers)


async def test_counts_come_in_parts_and_rows_are_bounded():
    source = ScriptedSource()
    for number in range(600):
        source.rows.add(row(f"r{number}", NOW - 5, choice()))
    feed, at, rows_at, counted = NewsFeed(source, lambda: NOW), 0, 0, 0
    while True:
        news = await feed.news(at, rows_at)
        counted += len(news.first_tokens)
        assert len(news.first_tokens) + len(news.ended) + len(news.served) <= 500
        assert len(news.rows) == (0 if rows_at else 100)
        at, rows_at = news.counts_at, news.rows_at
        if not news.more:
            break
    assert counted == 600
    for number in range(90):
        source.rows.add(row(f"s{number}", NOW - 5, choice()))
    news = await feed.news(at, rows_at)
    assert (len(news.rows), news.skipped) == (40, 50)


async def test_a_router_looks_at_its_requests_once_for_all_that_ask():
    source = there()
    feed = NewsFeed(source, lambda: NOW)
    await feed.news(0, 0)
    once = source.asked
    for _ in range(4):
        await feed.news(0, 0)
    assert source.asked == once


def test_a_log_lets_the_oldest_go():
    log = CountLog(most=3)
    for number in range(5):
        log.add(("served", (1.0, "acme", number)))
    found, at = log.after(0, 2)
    assert [one[1][2] for one in found] == [2, 3] and at == 4
    assert log.after(4, 9) == ([("served", (1.0, "acme", 4))], 5)
    assert log.after(5, 9) == ([], 5)
    assert log.after(99, 9) == ([], 5)


SAMPLE = asdict(TtftSample(NOW, "chat", "acme", "prefill-0", 0.3, (0.1, 0.0, 0.1, 0.1, 0.0)))
ENDED = {"request_id": "r", "received_at": 1.0, "total_s": 1.0}
RUNS = {"request_id": "r", "received_at": 1.0, "ttft_s": None}
SOUND = json.loads(
    PeerNews(
        *(1, 1),
        ended=((1.0, "chat", None, 0.0, False),),
        rows=(ENDED,),
        running=RunningNews(1, 1, (RUNS,)),
        first_tokens=(TtftSample(**SAMPLE),),
        tenants={"acme": tenant(1, 5)},
    ).to_json()
)


def test_fields_of_a_newer_version_are_ignored_and_those_of_an_older_one_missing():
    assert PeerNews.from_json(json.dumps(SOUND | {"new": [1]}).encode()).counts_at == 1
    assert PeerNews.from_json(b'{"counts_at": 3, "rows_at": 4}') == PeerNews(3, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts_at": "many"},
        {"ended": [[float("nan"), "chat", None, 0.0, False]]},
        {"itl": [[float("inf"), "chat", [], 0.0]]},
        {"ended": [[1.0, "chat"]]},
        {"refused": [[float("inf"), "chat", "ttft"]]},
        {"itl": [[1.0, "chat", [float("nan")], 0.0]]},
        {"moved": [["prefill-0", "decode-0", 10**400]]},
        {"first_tokens": [{"at": 1.0}]},
        {"first_tokens": [SAMPLE | {"stages": [0.1, 0.2]}]},
        {"first_tokens": [SAMPLE | {"ttft_s": float("nan")}]},
        {"first_tokens": [SAMPLE | {"prompt_tokens": 10**400}]},
        {"answers": [asdict(TextLength(float("nan"), "acme", 7))]},
        {"answers": [asdict(TextLength(NOW, "acme", 7)) | {"tokens": 10**400}]},
        {"served": {}},
        {"tenant_refused": [[float("nan"), "acme"]]},
        {"rows": [ENDED | {"received_at": "late"}]},
        {"rows": [{}]},
        {"rows": [{"received_at": 1.0}]},
        {"rows": [ENDED | {"ttft_s": float("nan")}]},
        {"rows": [ENDED | {"stages": [["prefill", 0.0, float("inf")]]}]},
        {"rows": [ENDED | {"request_id": ["r"]}]},
        {"rows": [ENDED | {"tenant": 7}]},
        {"running": {"rows": [{"ttft_s": None}]}},
        {"running": {"rows": [RUNS | {"received_at": "late"}]}},
        {"running": {"rows": [RUNS | {"tokens": float("nan")}]}},
        {"running": {"count": 10**400}},
        {"tenants": {"acme": {}}},
        {"tenants": {"acme": 7}},
        {"tenants": {"acme": tenant(1, 5) | {"caps": {"concurrent": {"used": None}}}}},
        {"tenants": {"acme": tenant(1, 5, served="much")}},
        {"tenants": {"acme": tenant(1, 5, served=float("nan"))}},
        {"tenants": {"acme": tenant("one", 5)}},
        {"tenants": {"acme": tenant(1, "five")}},
        {"tenants": {"acme": tenant(1, 5) | {"weight": float("inf")}}},
        {"tenants": {"acme": tenant(1, 5) | {"waiting_requests": "one"}}},
    ],
)
def test_news_that_could_end_a_feed_are_refused(wrong):
    with pytest.raises(Unavailable):
        PeerNews.from_json(json.dumps(SOUND | wrong).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b"\xff"])
def test_what_is_no_news_is_refused(data):
    with pytest.raises(Unavailable):
        PeerNews.from_json(data)


def test_the_use_of_caps_is_summed_and_what_was_served_is_not():
    own = {"acme": tenant(1, 5, served=7.0), "own": tenant(0, 10)}
    merged = merged_tenants(own, [{"acme": tenant(3, 4, served=6.5), "else": tenant(2, 10)}])
    assert merged["acme"]["caps"]["concurrent"] == {"used": 4, "here": 9, "cap": 10}
    assert (merged["acme"]["served"], merged["acme"]["waiting_requests"]) == (7.0, 2)
    assert merged["else"]["caps"]["concurrent"]["used"] == 2
    assert own["acme"]["caps"]["concurrent"]["used"] == 1


def test_waiting_requests_of_all_routers_come_first():
    rows = tuple(
        {"request_id": f"r{age}", "ttft_s": 0.1 if age < 50 else None, "received_at": NOW - age}
        for age in range(0, 100, 2)
    )
    own = [row | {"received_at": row["received_at"] - 1} for row in rows]
    beside = PeersTold(running={"router-1": RunningNews(80, 25, rows)}).beside(
        {"count": 70, "waiting": 25, "stalled": 0, "rows": own}, NOW
    )
    assert (beside["count"], beside["waiting"], len(beside["rows"])) == (150, 50, 60)
    assert all(one["ttft_s"] is None for one in beside["rows"][:50])
    assert Counts().links.rates(0.0) == []
