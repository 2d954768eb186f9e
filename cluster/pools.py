"""The router's view of the pools: who the directory says lives, less whom a call just lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from cluster.membership import Pool, ReplicaRecord, ReplicaRole

SUSPECT_S = 3.0


class Members(Protocol):
    """A copy of the directory; `Watch` is one."""

    def members(self, role: ReplicaRole | None = None) -> list[ReplicaRecord]:
        """The replicas that take work of that role, or all."""
        ...


class Pools:
    """Members by role, without suspects. A suspect comes back after `SUSPECT_S`, or reborn."""

    def __init__(self, members: Members, clock: Callable[[], float] = time.monotonic) -> None:
        self._members = members
        self._clock = clock
        self._suspects: dict[tuple[str, int], float] = {}

    def members(self) -> list[ReplicaRecord]:
        """Everyone the directory knows, suspects too."""
        return self._members.members()

    def healthy(self, pool: Pool) -> list[ReplicaRecord]:
        """The replicas of a pool that may be given work."""
        return [record for record in self._members.members(pool) if self.trusted(record)]

    def missing(self) -> tuple[str, ...]:
        """The pools without a healthy replica."""
        pools: tuple[Pool, ...] = ("prefill", "decode")
        return tuple(pool for pool in pools if not self.healthy(pool))

    def suspect(self, record: ReplicaRecord) -> None:
        """A call to this replica broke: give it nothing until its lease had time to end."""
        now = self._clock()
        self._suspects = {key: until for key, until in self._suspects.items() if until > now}
        self._suspects[(record.id, record.generation)] = now + SUSPECT_S

    def trusted(self, record: ReplicaRecord) -> bool:
        """Whether no call to this replica broke lately."""
        until = self._suspects.get((record.id, record.generation))
        if until is None:
            return True
        if self._clock() >= until:
            del self._suspects[(record.id, record.generation)]
            return True
        return False
