"""Cold starts: the pools that are being woken, and how long that will take. Pure.

A start is measured from the first request that found no replica until a new replica is there. A
replica that was only silent for a moment is not a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from cluster.replica_record import Pool

log = logging.getLogger(__name__)

# Start value: the part of the usual time that a late start is predicted to need yet.
_LEAST = 0.1
# A replica's id and generation.
Life = tuple[str, int]
# Bound: how long a refused request keeps a start going, as it will return after the start.
_REQUESTED_S = 5.0


class ColdStarts:
    """The starts in progress, and the seconds of the last start of each pool.

    `sleepers` are the pools that may have no replica. `guess_s` is the first guess.
    """

    def __init__(self, sleepers: Iterable[Pool] = (), guess_s: float = 30.0) -> None:
        self.sleepers = frozenset(sleepers)
        self._guess_s = guess_s
        self._took_s: dict[Pool, float] = {}
        self._since_s: dict[Pool, float] = {}
        self._requested_s: dict[Pool, float] = {}
        self._known: dict[Pool, frozenset[Life]] = {}

    def request(self, pools: Collection[Pool], now: float) -> float:
        """Note a request that needs these empty pools; returns the seconds until they are awake."""
        for pool in pools:
            self._since_s.setdefault(pool, now)
            self._requested_s[pool] = now
        return self.left_s(pools, now)

    def requested(self, now: float) -> list[Pool]:
        """The pools that were requested lately and have no replica yet."""
        return [pool for pool in self._since_s if now - self._requested_s[pool] < _REQUESTED_S]

    def observe(self, there: Mapping[Pool, Collection[Life]], now: float) -> None:
        """Take the present replicas by pool. The start of a pool with a new replica is over."""
        for pool, lives in there.items():
            if not lives:
                continue
            since_s = self._since_s.pop(pool, None)
            if since_s is not None and self._known.get(pool, frozenset()).isdisjoint(lives):
                took_s = self._took_s[pool] = now - since_s
                log.info("pool awake", extra={"pool": pool, "seconds": round(took_s, 3)})
            self._known[pool] = frozenset(lives)

    def usual_s(self, pool: Pool) -> float:
        """The seconds that a start of this pool usually takes."""
        return self._took_s.get(pool, self._guess_s)

    def left_s(self, pools: Iterable[Pool], now: float) -> float:
        """The predicted seconds until the last of these pools is awake."""
        return max((self._left_s(pool, now) for pool in pools), default=0.0)

    def _left_s(self, pool: Pool, now: float) -> float:
        usual_s = self.usual_s(pool)
        left_s = usual_s - (now - self._since_s.get(pool, now))
        return max(left_s, _LEAST * usual_s)
