"""What stands behind a gate in tests: a replica of each pool, and a placement with its pace."""

from __future__ import annotations

from cluster.discovery.cold_start import ColdStarts
from cluster.placement.placement import Placement
from cluster.replica_record import ReplicaLoad, ReplicaRecord

LOAD = ReplicaLoad(blocks_total=1000, block_size=16)


class Pools:
    """Replicas "p0" and "d0" in `records`, which a test may change; those of `starts` may sleep.

    The state of those in `old` is old.
    """

    def __init__(self, starts=None):
        self.starts = starts or ColdStarts()
        self.old: set[str] = set()
        self.records = {
            "prefill": [ReplicaRecord("p0", "prefill", "", 1, load=LOAD)],
            "decode": [ReplicaRecord("d0", "decode", "", 1, load=LOAD)],
        }

    def healthy(self, pool):
        return self.records[pool]

    def empty(self):
        return tuple(pool for pool, records in self.records.items() if not records)

    def asleep(self, pools):
        empty = tuple(pool for pool in self.empty() if pool in pools)
        return empty if set(empty) <= self.starts.sleepers else ()

    def stale(self):
        return self.old


def make_placement():
    """The prefill replica computes 1,000 tokens a second."""
    placement, now = Placement(), 0.0
    for tokens in (100, 900, 300, 500) * 20:
        now += 2.0
        placement.costs.prefill("p0").learn(tokens, 0, tokens / 1000, now)
    return placement
