"""Following other routers: only while somebody looks, never waiting, each count once."""

from __future__ import annotations

import asyncio

from cluster.console.peer_news import PeerNews, RunningNews
from cluster.router.peers import news_following
from cluster.router.peers.news_following import FollowedNews
from protos.peer_pb2 import PeerAnswer
from tests.cluster.router.peers.rig import peers_of, record, saying
from tests.cluster.router.peers.test_peer_calls import never, nonsense
from tests.eventually import eventually


class Script:
    """A router that counts one more token of `acme` with each answer."""

    def __init__(self):
        self.asked: list[tuple[int, int]] = []

    def __call__(self, question):
        self.asked.append((question.news.counts_after, question.news.rows_after))
        at = question.news.counts_after + 1
        news = PeerNews(at, at, served=((1.0, "acme", at),), running=RunningNews(2, 1))
        return PeerAnswer(news=news.to_json())


async def test_a_look_waits_for_nothing_and_each_answer_comes_once(monkeypatch):
    monkeypatch.setattr(news_following, "TICK_S", 0.01)
    script, found = Script(), []
    async with peers_of(other=saying(script)) as (peers, _):
        followed = FollowedNews(peers)
        assert followed.look().news == ()

        def looked():
            told = followed.look()
            found.extend(one.served[0][2] for _, one in told.news)
            return len(found) > 5 and told.running == {"other": RunningNews(2, 1)}

        await eventually(looked)
        assert found == list(range(1, len(found) + 1))
        assert script.asked[:3] == [(0, 0), (1, 1), (2, 2)]
        assert followed.routers() == {"other": None}
        await followed.close()


async def test_nobody_is_asked_once_nobody_looks(monkeypatch):
    monkeypatch.setattr(news_following, "TICK_S", 0.01)
    script, now = Script(), 0.0
    async with peers_of(other=saying(script)) as (peers, _):
        followed = FollowedNews(peers, lambda: now)
        followed.look()
        await eventually(lambda: script.asked)
        now = 4.0
        named = lambda: {one.get_name() for one in asyncio.all_tasks()}  # noqa: E731
        await eventually(lambda: "news of other" not in named())
        asked = len(script.asked)
        assert asked <= 5, "more waits to be counted than may"
        # What it told before is not asked for again, and counts with the next look.
        assert len(followed.look().news) == asked
        await eventually(lambda: len(script.asked) > asked)
        assert script.asked[asked] == (asked, asked)
        await followed.close()


async def test_a_frozen_router_is_named_and_delays_no_look(monkeypatch):
    monkeypatch.setattr(news_following, "AGAIN_S", 0.05)
    async with peers_of(frozen=never, odd=nonsense, old=None, other=saying(Script())) as (peers, _):
        followed = FollowedNews(peers)

        def named():
            followed.look()
            return all(followed.routers()[name] for name in ("frozen", "odd", "old"))

        await eventually(named)
        reasons = {
            "frozen": "it did not answer for 1 s",
            "odd": "its answer cannot be read",
            "old": "its version answers no other router",
            "other": None,
        }
        # On a busy machine the router that answers may be late for once.
        await eventually(lambda: followed.look() and followed.routers() == reasons)
        assert set(followed.look().running) == {"other"}
        await followed.close()


async def test_another_life_of_a_router_begins_anew_and_a_router_that_left_is_forgotten():
    script = Script()
    async with peers_of(other=saying(script)) as (peers, records):
        followed = FollowedNews(peers)
        await eventually(lambda: followed.look().running)
        address = records[-1].peer
        records[-1] = record("other", address, generation=2)
        await eventually(lambda: followed.look() and script.asked.count((0, 0)) == 2)
        records.pop()
        assert followed.look().running == {}
        assert followed.routers() == {}
        await followed.close()
