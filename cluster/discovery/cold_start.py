"""Pools that sleep: who waits for one, and how long it takes until it has a replica. Pure.

A start is measured from the first request that found nobody until a replica was there that had
not been there before: one that only fell silent for a moment has not been started.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from cluster.replica_record import Pool

log = logging.getLogger(__name__)

# Of what a start usually takes, the part that one is taken to need yet when its time is over.
_LEAST = 0.1
# A replica's id and generation.
Life = tuple[str, int]
# For so long a request that was refused, to come again after the start, keeps it going.
_CALLED_S = 5.0


class ColdStarts:
    """The starts that go on, and what the last ones took; `guess_s` before one was measured.

    `sleepers` are the pools that may have no replica.
    """

    def __init__(self, sleepers: Iterable[Pool] = (), guess_s: float = 30.0) -> None:
        self.sleepers = frozenset(sleepers)
        self._guess_s = guess_s
        self._took_s: dict[Pool, float] = {}
        self._since_s: dict[Pool, float] = {}
        self._called_s: dict[Pool, float] = {}
        self._known: dict[Pool, frozenset[Life]] = {}

    def call(self, pools: Collection[Pool], now: float) -> float:
        """A request found nobody in these pools; returns the seconds until somebody is there."""
        for pool in pools:
            self._since_s.setdefault(pool, now)
            self._called_s[pool] = now
        return self.left_s(pools, now)

    def called(self, now: float) -> list[Pool]:
        """The pools that somebody called lately, and nobody has come."""
        return [pool for pool in self._since_s if now - self._called_s[pool] < _CALLED_S]

    def look(self, there: Mapping[Pool, Collection[Life]], now: float) -> None:
        """Who is there by pool; where somebody is, a start that went on is over."""
        for pool, lives in there.items():
            if not lives:
                continue
            since_s = self._since_s.pop(pool, None)
            if since_s is not None and self._known.get(pool, frozenset()).isdisjoint(lives):
                took_s = self._took_s[pool] = now - since_s
                log.info("pool awake", extra={"pool": pool, "seconds": round(took_s, 3)})
            self._known[pool] = frozenset(lives)

    def usual_s(self, pool: Pool) -> float:
        """What a start of this pool is taken to need."""
        return self._took_s.get(pool, self._guess_s)

    def left_s(self, pools: Iterable[Pool], now: float) -> float:
        """For how much longer the last of these pools is taken to need, if it began to start."""
        return max((self._left_s(pool, now) for pool in pools), default=0.0)

    def _left_s(self, pool: Pool, now: float) -> float:
        usual_s = self.usual_s(pool)
        left_s = usual_s - (now - self._since_s.get(pool, now))
        return max(left_s, _LEAST * usual_s)
