"""Requests that the pools could not take, as the controller of the pools is told. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from cluster.admission.policy import Reason
from cluster.replica_record import Pool

# For so long a refused request counts, and after so long one that is held begins to.
LATELY_S = 1.0
_POOLS: dict[Reason, Pool] = {
    "ttft": "prefill",
    "itl": "decode",
    "kv_blocks": "decode",
    "decode_batch": "decode",
}


class UnservedDemand:
    """The requests that were refused lately, or wait for long, by the pool that has no room.

    What a tenant's own cap refuses, or a full router, is no pool's lack. Nor is it one that prompts
    wait for their turn: how long that is counts by itself (`cluster/autoscaling/load_signals.py`).
    """

    def __init__(self) -> None:
        self._refused: deque[tuple[float, Pool]] = deque()

    def refused(self, reason: Reason, now: float) -> None:
        """A request was refused."""
        pool = _POOLS.get(reason)
        if pool is not None:
            self._refused.append((now, pool))
            self._forget(now)

    def count(self, held: Iterable[tuple[float, Reason | None]], now: float) -> Counter[Pool]:
        """How many there are; `held` gives each that waits: since when, and for what."""
        self._forget(now)
        counts = Counter(pool for _, pool in self._refused)
        for since_s, reason in held:
            pool = _POOLS.get(reason) if reason is not None else None
            if pool == "decode" and now - since_s >= LATELY_S:
                counts[pool] += 1
        return counts

    def _forget(self, now: float) -> None:
        while self._refused and now - self._refused[0][0] > LATELY_S:
            self._refused.popleft()
