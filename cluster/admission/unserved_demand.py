"""Counts the requests that the pools could not take, for the autoscaler. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from cluster.admission.policy import Reason
from cluster.replica_record import Pool

# Bound: how long a refused request counts, and after how long a waiting one begins to.
LATELY_S = 1.0
_POOLS: dict[Reason, Pool] = {
    "ttft": "prefill",
    "itl": "decode",
    "kv_blocks": "decode",
    "decode_batch": "decode",
}


class UnservedDemand:
    """Requests that were refused lately or wait long, by the pool that lacks the capacity.

    No pool lacks capacity for what a tenant's own cap or a full router refuses. Prompts that wait
    for computing are not counted here, because their seconds are a load signal of their own
    (`cluster/autoscaling/load_signals.py`).
    """

    def __init__(self) -> None:
        self._refused: deque[tuple[float, Pool]] = deque()

    def refused(self, reason: Reason, now: float) -> None:
        """Note a refused request."""
        pool = _POOLS.get(reason)
        if pool is not None:
            self._refused.append((now, pool))
            self._forget(now)

    def count(self, waiting: Iterable[tuple[float, Reason | None]], now: float) -> Counter[Pool]:
        """Unserved requests by pool. `waiting` has the arrival and reason of each waiting one."""
        self._forget(now)
        counts = Counter(pool for _, pool in self._refused)
        for since_s, reason in waiting:
            pool = _POOLS.get(reason) if reason is not None else None
            if pool == "decode" and now - since_s >= LATELY_S:
                counts[pool] += 1
        return counts

    def _forget(self, now: float) -> None:
        while self._refused and now - self._refused[0][0] > LATELY_S:
            self._refused.popleft()
