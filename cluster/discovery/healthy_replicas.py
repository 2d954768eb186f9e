"""The router's view of the pools: the living replicas, less the ones that it does not trust.

A router does not trust a replica to which a call just broke, or which is silent: a frozen replica
keeps its lease for a while. Nor does it trust a replica whose engine is stalled. What a replica
reports to the router itself is newer than its record in the directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from cluster.discovery.cold_start import ColdStarts
from cluster.replica_record import Pool, ReplicaRecord, ReplicaRole, served, whole
from cluster.rpc.load_reports_client import LoadReports

# Bound: how long a broken call keeps a replica from work. By then a dead one has lost its lease.
SUSPECT_S = 3.0


class Members(Protocol):
    """A copy of the directory; `DirectoryWatch` is one."""

    def members(self, role: ReplicaRole | None = None) -> list[ReplicaRecord]:
        """The replicas that take work of that role, or all."""
        ...


class HealthyReplicas:
    """Members by role, without suspects.

    A suspect is trusted again after `SUSPECT_S`, or with a new generation. A pool that has nothing
    but suspects trusts the ones that report again: their connections broke, and they live.

    With an `identity`, only replicas of that model get work: during a rollout the directory has
    replicas of another model as well. `starts` knows the pools that may sleep.
    """

    def __init__(
        self,
        members: Members,
        clock: Callable[[], float] = time.monotonic,
        reports: LoadReports | None = None,
        identity: str | None = None,
        starts: ColdStarts | None = None,
    ) -> None:
        self.starts = ColdStarts() if starts is None else starts
        self._members = members
        self._clock = clock
        self._reports = reports
        self._identity = identity
        self._suspects: dict[tuple[str, int], float] = {}

    def members(self) -> list[ReplicaRecord]:
        """All members of the directory, suspects too."""
        return self._members.members()

    def healthy(self, pool: Pool) -> list[ReplicaRecord]:
        """The replicas that may get work of a pool; leaving replicas only if there is no other."""
        able = [
            newest
            for one in self._members.members()
            if one.role != "router" and self.ours(one) and self._fit(newest := self.latest(one))
        ]
        if any(one.leaving for one in able) and whole(able, served(able)):
            able = [one for one in able if not one.leaving]
        found = [one for one in able if one.serves(pool)]
        return found or [one for one in self._back() if one.serves(pool)]

    def ours(self, record: ReplicaRecord) -> bool:
        """Whether a replica serves the weights that this router serves."""
        return self._identity is None or record.model_identity == self._identity

    def latest(self, record: ReplicaRecord) -> ReplicaRecord:
        """The record with the newest report of the replica itself."""
        return record if self._reports is None else self._reports.with_report(record)

    def stale(self) -> set[str]:
        """The ids of the replicas whose last report is old."""
        return self._reports.stale() if self._reports is not None else set()

    def unhealthy(self) -> tuple[str, ...]:
        """The ids of the replicas of this model in which this router does not trust."""
        members = (one for one in self._members.members() if one.role != "router")
        return tuple(one.id for one in members if self.ours(one) and not self.trusted(one))

    def missing(self) -> tuple[str, ...]:
        """The pools that should have a healthy replica and have none."""
        return tuple(pool for pool in self.empty() if pool not in self.starts.sleepers)

    def empty(self) -> tuple[Pool, ...]:
        """The pools without a healthy replica."""
        pools: tuple[Pool, ...] = ("prefill", "decode")
        return tuple(pool for pool in pools if not self.healthy(pool))

    def asleep(self, pools: Collection[Pool]) -> tuple[Pool, ...]:
        """The empty ones of these pools, if all of them may be woken."""
        if not self.starts.sleepers:
            return ()
        empty = tuple(pool for pool in self.empty() if pool in pools)
        return empty if set(empty) <= self.starts.sleepers else ()

    def suspect(self, record: ReplicaRecord) -> None:
        """Give a replica no work until its lease had time to end, because a call to it broke."""
        now = self._clock()
        self._suspects = {key: until for key, until in self._suspects.items() if until > now}
        self._suspects[(record.id, record.generation)] = now + SUSPECT_S

    def trusted(self, record: ReplicaRecord) -> bool:
        """Whether a replica is not silent, its engine goes on, and no call to it broke lately."""
        return self._fit(self.latest(record))

    def _fit(self, newest: ReplicaRecord) -> bool:
        """As `trusted`, of a record with the newest report."""
        if self._reports is not None and self._reports.silent(newest.id):
            return False
        if newest.load.stalled:
            return False
        until = self._suspects.get((newest.id, newest.generation))
        if until is None:
            return True
        if self._clock() >= until:
            del self._suspects[(newest.id, newest.generation)]
            return True
        return False

    def _back(self) -> list[ReplicaRecord]:
        """The suspects that have reported since their calls broke, and would else be trusted."""
        members = (self.latest(one) for one in self._members.members() if self.ours(one))
        return [one for one in members if self._is_back(one)]

    def _is_back(self, newest: ReplicaRecord) -> bool:
        until = self._suspects.get((newest.id, newest.generation))
        if until is None or self._reports is None or self._reports.silent(newest.id):
            return False
        reported = self._reports.reported_since(newest.id, until - SUSPECT_S)
        return reported and not newest.load.stalled
