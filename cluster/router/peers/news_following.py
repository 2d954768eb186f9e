"""Follows the news of the other routers while somebody looks at the console.

Each router has a task of its own. So a router that is frozen, dead or slow delays nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.api.event_streams import end
from cluster.console.feed import TICK_S
from cluster.console.peer_news import PeerNews, PeersTold
from cluster.replica_record import ReplicaRecord
from cluster.router.peers.peer_calls import MOST_PEERS, TOO_MANY, PeerLine, Peers, deadline
from engine.errors import TandemError
from protos.peer_pb2 import NewsQuestion, PeerQuestion

log = logging.getLogger(__name__)

# Without a look for so long, nobody is asked any more.
_UNSEEN_S = 3.0
# The pauses behind an answer that was not all, and behind a router that did not answer.
_MORE_S = 0.05
AGAIN_S = 1.0
# Bound: answers that wait to be counted, in one go; further ones are not asked for.
_MOST_WAITING = 4


@dataclass(slots=True)
class _FollowedRouter:
    """Another router in one of its lives. `silent` is why it does not answer, None if it does.

    `waiting` are the answers since the last look, and `latest` is the last answer.
    """

    record: ReplicaRecord
    task: asyncio.Task[None] | None = None
    counts_at: int = 0
    rows_at: int = 0
    waiting: list[PeerNews] = field(default_factory=list)
    latest: PeerNews | None = None
    silent: str | None = None


class FollowedNews:
    """What the other routers tell. The first look begins to ask, and looks keep it going."""

    def __init__(self, peers: Peers, clock: Callable[[], float] = time.monotonic) -> None:
        self._peers = peers
        self._clock = clock
        self._followed: dict[tuple[str, int], _FollowedRouter] = {}
        self._too_many: list[str] = []
        self._looked_s = 0.0

    def look(self) -> PeersTold:
        """What was told since the last look; it waits for nothing."""
        self._looked_s = self._clock()
        self._follow()
        news = []
        for (name, _), one in self._followed.items():
            news += [(name, each) for each in one.waiting]
            one.waiting.clear()
        running = {name: one.running for name, one in self.latest().items()}
        return PeersTold(tuple(news), running)

    def latest(self) -> dict[str, PeerNews]:
        """The last news of each router that answers."""
        return {
            name: one.latest
            for (name, _), one in self._followed.items()
            if one.latest is not None and one.silent is None
        }

    def routers(self) -> dict[str, str | None]:
        """The other routers, and why they do not answer; None for a router that does."""
        found: dict[str, str | None] = dict.fromkeys(self._too_many, TOO_MANY)
        return found | {name: one.silent for (name, _), one in self._followed.items()}

    async def close(self) -> None:
        """Ask nobody any more. Idempotent."""
        followed, self._followed = list(self._followed.values()), {}
        await end([one.task for one in followed if one.task is not None])

    def _follow(self) -> None:
        """Follow the routers that live, and no others."""
        others = self._peers.others()
        self._too_many = [one.id for one in others[MOST_PEERS:]]
        living = {(one.id, one.generation): one for one in others[:MOST_PEERS]}
        for key in [key for key in self._followed if key not in living]:
            task = self._followed.pop(key).task
            if task is not None:
                task.cancel()
        for key, record in living.items():
            one = self._followed.setdefault(key, _FollowedRouter(record))
            if one.task is None or one.task.done():
                one.latest = None
                one.task = asyncio.create_task(self._run(one), name=f"news of {record.id}")

    @property
    def _seen(self) -> bool:
        """Whether somebody looks."""
        return self._clock() - self._looked_s < _UNSEEN_S

    async def _run(self, one: _FollowedRouter) -> None:
        while self._seen:
            try:
                async with self._peers.line(one.record) as line:
                    await self._listen(one, line)
            except TandemError as error:
                if one.silent is None:
                    said = {"peer": one.record.id, "reason": error.message}
                    log.info("another router tells the console nothing", extra=said)
                one.silent = error.message
            except Exception:
                if one.silent is None:
                    log.exception("the news of another router could not be taken")
                one.silent = "its news could not be taken"
            else:
                return
            await asyncio.sleep(AGAIN_S)

    async def _listen(self, one: _FollowedRouter, line: PeerLine) -> None:
        """Ask for news as long as somebody looks. Raises a TandemError."""
        while self._seen:
            pause_s = TICK_S
            if len(one.waiting) < _MOST_WAITING:
                asked = NewsQuestion(counts_after=one.counts_at, rows_after=one.rows_at)
                async with deadline():
                    answer = await line.ask(PeerQuestion(news=asked))
                # Hundreds of counts are read on a thread, because tokens wait meanwhile.
                news = await asyncio.to_thread(PeerNews.from_json, answer.news)
                one.counts_at, one.rows_at = news.counts_at, news.rows_at
                one.waiting.append(news)
                one.latest, one.silent = news, None
                if news.more:
                    pause_s = _MORE_S
            await asyncio.sleep(pause_s)
