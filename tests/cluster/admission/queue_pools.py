"""What is behind an admission queue in tests: replicas, learned costs, and a clock."""

from __future__ import annotations

import asyncio
import time

from cluster.discovery.cold_start import ColdStarts
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord

LOAD = ReplicaLoad(blocks_total=1000, block_size=16)


class Pools:
    """Replicas "p0" and "d0" in `records`, which a test may change; those of `starts` may sleep.

    The state of the replicas in `old` is old.
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


class Clock:
    """Monotonic seconds that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make_placement():
    """The prefill replica computes 1,000 tokens a second."""
    placement, now = Placement(), 0.0
    for tokens in (100, 900, 300, 500) * 20:
        now += 2.0
        placement.costs.prefill("p0").learn(tokens, 0, tokens / 1000, now)
    return placement


def request(tokens=5000, most=0, **more):
    """One that arrives now and has 10 s for its first token."""
    values = {"arrived_s": time.monotonic(), "budget_s": 10.0, "key": object(), **more}
    return PlacementRequest(tokens, most or tokens + 10, **values)


def enter(queue, *given, tell=None, **more):
    """A task that enters the queue with such a request."""
    return asyncio.create_task(queue.enter(request(*given, **more), tell))


async def end(*tasks):
    """Cancel them, and release what they were assigned."""
    for task in tasks:
        task.cancel()
    for entered in await asyncio.gather(*tasks, return_exceptions=True):
        for assigned in entered if isinstance(entered, list) else []:
            assigned.release()
