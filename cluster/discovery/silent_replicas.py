"""Ends the calls to replicas that say nothing, so that the streams there fail over.

A frozen replica, or a replica that is cut off, breaks no connection. Its load reports come from its
event loop, which no step of its engine stops. So a replica is silent while neither reports nor
events of calls come.

A replica that starves on a busy host is silent, too. So a replica keeps its streams while no other
replica could take them. The other replica must have spoken lately, because a starving host silences
all its replicas together. A replica that spoke again after a silence may be slow again. So for a
minute the router waits for twice that silence (after Chandra and Toueg, "Unreliable failure
detectors", 1996).

A replica that reports may be cut off from its calls alone. It writes to the connection for calls
every `cluster.rpc.server.BEAT_S`, by the clock of its reports. So the router counts the reports
that come while that connection is silent, and a slow replica is not taken for a cut connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, get_args

from cluster.replica_record import Pool, ReplicaRecord
from cluster.rpc.load_reports_client import TICK_S

log = logging.getLogger(__name__)

# Tuned: reports come every 0.25 s. A replica that stands still for 0.7 s keeps its streams, and a
# stream of a frozen replica stands still below 3 s.
_LEAST_TICKS = 10
# Bound: connections for calls end by themselves after 15 s of silence.
_MOST_TICKS = 150
# Tuned: how long a silence of a replica counts.
_MEMORY_TICKS = 600
# Tuned: the longest silence of a replica that can take over, of two reports.
_LIVELY_TICKS = 5
# Tuned: ticks with reports, in which two signs of life on the connection for calls were due.
_CUT_REPORTS = 12


class Trusted(Protocol):
    """The members of the directory; `HealthyReplicas` is one."""

    def members(self) -> list[ReplicaRecord]:
        """All members."""
        ...

    def healthy(self, pool: Pool) -> list[ReplicaRecord]:
        """The replicas that may get work of a pool."""
        ...


class CallConnections(Protocol):
    """The connections for calls, by address; `CallStreams` is one."""

    def heard(self, address: str) -> bool | None:
        """Whether anything came from there since the last time; None while not connected."""
        ...

    def cut(self, address: str, reason: str) -> bool:
        """End the connection and all calls there at once; False where there were none."""
        ...


class ReplicaSilence:
    """The silence of one replica, in ticks. Pure.

    Ticks are those of the router's loop, because a router that stood still must not take its own
    pause for the silence of others.
    """

    def __init__(self) -> None:
        self.ticks = 0
        self._longest = 0
        self._age = 0

    @property
    def lost(self) -> bool:
        """Whether the silence is longer than the replica's silences so far explain."""
        return self.ticks >= min(_MOST_TICKS, max(_LEAST_TICKS, 2 * self._longest))

    def tick(self, *, heard: bool) -> None:
        """Count a tick, in which the replica was heard or not."""
        self._age += 1
        if self._age >= _MEMORY_TICKS:
            self._longest = 0
        if not heard:
            self.ticks += 1
            return
        if self.ticks >= self._longest:
            self._longest, self._age = self.ticks, 0
        self.ticks = 0


@dataclass(slots=True)
class _Watched:
    """A replica, and its reports since anything came by the open connection for calls."""

    silence: ReplicaSilence = field(default_factory=ReplicaSilence)
    reports: int = 0

    def tick(self, *, reported: bool, heard: bool | None) -> None:
        self.silence.tick(heard=reported or bool(heard))
        self.reports = self.reports + reported if heard is False else 0


class SilentReplicas:
    """Watches the replicas of a router, and ends its calls to the lost ones."""

    def __init__(self, pools: Trusted, calls: CallConnections) -> None:
        self._pools = pools
        self._calls = calls
        self._watched: dict[tuple[str, int], _Watched] = {}

    def tick(self, replicas: Iterable[tuple[ReplicaRecord, bool]]) -> None:
        """Count a tick of `TICK_S` for each replica, which has just reported or not."""
        before, self._watched = self._watched, {}
        records = []
        for record, reported in replicas:
            key = record.id, record.generation
            watched = self._watched[key] = before.get(key) or _Watched()
            watched.tick(reported=reported, heard=self._calls.heard(record.address))
            records.append((record, watched))
        for record, watched in records:
            silence = watched.silence
            if silence.lost and self._replaceable(record):
                self._give_up(record, f"nothing was heard for {silence.ticks * TICK_S:.1f} s")
            elif watched.reports >= _CUT_REPORTS:
                # The replica lives: a new connection may reach it.
                self._give_up(record, f"no word of calls in {watched.reports} reports")
                watched.reports = 0

    def _give_up(self, record: ReplicaRecord, reason: str) -> None:
        if self._calls.cut(record.address, reason):
            log.warning("silent replica given up", extra={"replica": record.id, "reason": reason})

    def _replaceable(self, record: ReplicaRecord) -> bool:
        """Whether each pool of the replica has another replica, which spoke lately."""
        # The directory has the role of today.
        now = next((one for one in self._pools.members() if one.id == record.id), record)
        pools = [pool for pool in get_args(Pool) if now.serves(pool)]
        return all(any(map(self._lively, self._others(pool, record))) for pool in pools)

    def _others(self, pool: Pool, record: ReplicaRecord) -> list[ReplicaRecord]:
        return [one for one in self._pools.healthy(pool) if one.id != record.id]

    def _lively(self, record: ReplicaRecord) -> bool:
        watched = self._watched.get((record.id, record.generation))
        return watched is None or watched.silence.ticks <= _LIVELY_TICKS
