"""Decides when a replica flips its role, and how many replicas a pool should have. Pure.

This is one controller with hysteresis on the pools' pressure
(`cluster/autoscaling/load_signals.py`):

- A pool under pressure for `pressure_hold_s` gets a replica of the other pool. That replica flips
  its role, to this pool's if the others can carry its work, or else to `both`.
- If no replica can flip, the pool should have more replicas.
- After `calm_s` without a pool at half pressure, a replica that flipped its role goes home.
- After `spare_s` in which the pool with one replica less would be at most at half pressure, the
  pool should have one replica less.
- Changes are `rest_s` apart. A pool gets no more replicas before the desired ones are there.
- A pool that may sleep loses its last replica after `idle_s` without work. A request that needs
  the pool wakes it at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.autoscaling.load_signals import LoadLimits, pressure, shared, unserved, used
from cluster.config.autoscaling import ScalingConfig
from cluster.replica_record import Pool, ReplicaRecord, ReplicaRole

_OTHER: dict[Pool, Pool] = {"prefill": "decode", "decode": "prefill"}
# Tuned for few changes: the pressure up to which a pool is calm, or can carry one replica less.
_CALM = 0.5


@dataclass(frozen=True, slots=True)
class Flip:
    """A role flip: a replica, the role that it should take, and why."""

    replica: ReplicaRecord
    role: ReplicaRole
    reason: str


@dataclass(frozen=True, slots=True)
class Resize:
    """A resize: the desired number of replicas, the desired number before, and the reason."""

    pool: Pool
    replicas: int
    before: int
    reason: str


class PoolController:
    """Decides again and again from the members, and makes one change at a time.

    `desired` are the last published numbers of replicas, as far as they are known.
    """

    def __init__(
        self, config: ScalingConfig, limits: LoadLimits, desired: Mapping[Pool, int] | None = None
    ) -> None:
        self._config = config
        self._limits = limits
        self._desired = {
            pool: min(max(count, config.bounds[pool].min), config.bounds[pool].max)
            for pool, count in (desired or {}).items()
            if pool in config.bounds
        }
        self._sleepers = sorted(config.sleepers, reverse=True)  # prompts come first
        self._one_pool = False
        self._had: dict[Pool, int] = {}
        self._pressure_since: dict[Pool, float] = {}
        self._spare_since: dict[Pool, float] = {}
        self._idle_since: dict[Pool, float] = {}
        self._calm_since: float | None = None
        self._changed_s: float | None = None

    @property
    def desired(self) -> dict[Pool, int]:
        """The desired number of replicas of each pool that scales."""
        return dict(self._desired)

    @property
    def missing(self) -> list[Pool]:
        """The pools that should have replicas and have none."""
        return [pool for pool, count in self._desired.items() if count and not self._had.get(pool)]

    def decide(self, members: Iterable[ReplicaRecord], now: float) -> Flip | Resize | None:
        """The change to make now, if there is one. The controller assumes that it is made."""
        members = list(members)
        self._count(members)
        pressures = {pool: pressure(pool, members, self._limits) for pool in _OTHER}
        self._note(pressures, members, now)
        if (woken := self._wake(members)) is not None:
            return woken
        if self._changed_s is not None and now - self._changed_s < self._config.rest_s:
            return None
        workers = [record for record in members if record.role != "router"]
        change = self._relieve(workers, pressures, now) or self._relax(workers, now)
        if change is not None:
            self._changed_s = now
        if isinstance(change, Resize):
            self._desired[change.pool] = change.replicas
            self._restart_timers(change.pool)
        return change

    def _count(self, members: Sequence[ReplicaRecord]) -> None:
        """Count the replicas of each pool; where that changed, its timers start again."""
        self._one_pool = any(record.home == "both" for record in members)
        for pool, bounds in self._config.bounds.items():
            have = sum(_at_home(record, pool) for record in members)
            if have != self._had.get(pool, have):
                self._restart_timers(pool)
            self._had[pool] = have
            if have and pool not in self._desired:
                self._desired[pool] = min(max(have, bounds.min), bounds.max)

    def _restart_timers(self, pool: Pool) -> None:
        self._pressure_since.pop(pool, None)
        self._spare_since.pop(pool, None)
        self._idle_since.pop(pool, None)

    def _note(
        self, pressures: Mapping[Pool, float], members: Sequence[ReplicaRecord], now: float
    ) -> None:
        for pool, found in pressures.items():
            _since(self._pressure_since, pool, found >= 1, now)
        for pool in self._config.bounds:
            _since(self._spare_since, pool, self._has_spare(pool, members), now)
        for pool in self._sleepers:
            _since(self._idle_since, pool, self._is_idle(pool, members), now)
        if max(pressures.values()) > _CALM:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    def _has_spare(self, pool: Pool, members: Sequence[ReplicaRecord]) -> bool:
        """Whether the pool would be at most at half pressure with one replica less."""
        left = self._had[pool] - 1
        if left < 1 or any(unserved(one, members, self._limits) for one in self._works(pool)):
            return False
        works = self._works(pool)
        return all(shared(one, members, self._limits, left) <= _CALM for one in works)

    def _is_idle(self, pool: Pool, members: Sequence[ReplicaRecord]) -> bool:
        """Whether the pool's only replica is at home without work, and no request waits anywhere.

        A request that waits in a router for the other pool may need this pool after it.
        """
        own = [record for record in members if _at_home(record, pool)]
        waiting = any(one.role == "router" and one.load.waiting for one in members)
        needed = waiting or any(unserved(one, members, self._limits) for one in self._works(pool))
        return len(own) == 1 and own[0].role == own[0].home and not (own[0].load.used or needed)

    def _wake(self, members: Sequence[ReplicaRecord]) -> Resize | None:
        """The first replica for a pool that sleeps and is needed."""
        for pool in self._sleepers:
            asleep = not self._had.get(pool) and not self._desired.get(pool)
            if asleep and any(unserved(one, members, self._limits) for one in self._works(pool)):
                self._desired[pool] = 1
                self._restart_timers(pool)
                return Resize(pool, 1, 0, "a request waits and the pool has no replica")
        return None

    def _works(self, pool: Pool) -> tuple[Pool, ...]:
        """The pools whose work this pool does; a single pool does the work of both."""
        return ("decode", "prefill") if self._one_pool else (pool,)

    def _relieve(
        self, workers: Sequence[ReplicaRecord], pressures: Mapping[Pool, float], now: float
    ) -> Flip | Resize | None:
        for pool, since in self._pressure_since.items():
            if now - since < self._config.pressure_hold_s:
                continue
            flip = self._flip(pool, workers, pressures, now - since)
            if change := flip or self._grow(pool, now - since):
                return change
        return None

    def _flip(
        self,
        pool: Pool,
        workers: Sequence[ReplicaRecord],
        pressures: Mapping[Pool, float],
        pressure_s: float,
    ) -> Flip | None:
        other, limits = _OTHER[pool], self._limits
        able = [record for record in workers if record.role == other]
        if not (able and self._config.flip_roles) or pressures[other] >= 1:
            return None
        record = min(able, key=lambda record: (used(other, record, limits), record.id))
        rest = [r for r in workers if r.serves(other) and r is not record]
        spread = sum(used(other, r, limits) for r in (record, *rest)) / max(1, len(rest))
        role: ReplicaRole = pool if rest and spread <= _CALM else "both"
        return Flip(record, role, f"{pool} was under pressure for {pressure_s:.1f} s")

    def _grow(self, pool: Pool, pressure_s: float) -> Resize | None:
        """More replicas for a pool under pressure, once the desired ones are there."""
        grown: Pool = "decode" if self._one_pool else pool
        bounds, before = self._config.bounds.get(grown), self._desired.get(grown)
        if bounds is None or before is None or self._had[grown] < before:
            return None
        after = min(before + self._config.step, bounds.max)
        if after <= before:
            return None
        return Resize(grown, after, before, f"{pool} was under pressure for {pressure_s:.1f} s")

    def _relax(self, workers: Sequence[ReplicaRecord], now: float) -> Flip | Resize | None:
        away = [record for record in workers if record.home not in (None, record.role)]
        return self._send_home(workers, away, now) if away else self._shrink(now)

    def _send_home(
        self, workers: Sequence[ReplicaRecord], away: Sequence[ReplicaRecord], now: float
    ) -> Flip | None:
        calm_s = 0.0 if self._calm_since is None else now - self._calm_since
        if self._calm_since is None or calm_s < self._config.calm_s:
            return None
        for record in sorted(away, key=lambda record: record.id):
            home = record.home
            assert home is not None
            roles = {home if other is record else other.role for other in workers}
            if "both" in roles or roles >= set(_OTHER):
                return Flip(record, home, f"no pool was at half pressure for {calm_s:.1f} s")
        return None

    def _shrink(self, now: float) -> Resize | None:
        for pool, since in self._idle_since.items():
            if now - since >= self._config.idle_s and self._desired.get(pool) == 1:
                return Resize(pool, 0, 1, f"the pool had no work for {now - since:.1f} s")
        for pool, since in self._spare_since.items():
            before, least = self._desired[pool], self._config.bounds[pool].min
            leaving = self._had[pool] > before
            if now - since >= self._config.spare_s and before > least and not leaving:
                why = f"one {pool} replica was to spare for {now - since:.1f} s"
                return Resize(pool, before - 1, before, why)
        return None


def _at_home(record: ReplicaRecord, pool: Pool) -> bool:
    """Whether the replica belongs to that pool's deployment, whatever its role is now."""
    return record.home == pool or (record.home == "both" and pool == "decode")


def _since(times: dict[Pool, float], pool: Pool, true: bool, now: float) -> None:
    if true:
        times.setdefault(pool, now)
    else:
        times.pop(pool, None)
