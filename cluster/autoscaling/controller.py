"""When a replica takes another role for a while, and when a pool gets more or fewer. Pure.

One controller with hysteresis. After `pressure_hold_s` of pressure
(`cluster/autoscaling/load_signals.py`) a replica of the
other pool is lent, wholly where others can carry its work, else in role `both`; where none can be
lent, the pool is to have more replicas. After `calm_s` in which no pool was more than half pressed
one that was lent goes home; after `spare_s` in which one replica less would be at most half
pressed the pool is to have one less. Between two changes there are `rest_s`, and a pool gets no
more replicas before those that it was to have are there.

A pool that may sleep loses its last replica after `idle_s` without any work, and is woken at once
by a request that it has nobody for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.autoscaling.load_signals import LoadLimits, pressure, shared, unmet, used
from cluster.config.autoscaling import ScalingConfig
from cluster.replica_record import Pool, ReplicaRecord, ReplicaRole

_OTHER: dict[Pool, Pool] = {"prefill": "decode", "decode": "prefill"}
# The part of its limits that a pool may have reached and still be calm, or carry one replica less.
_CALM = 0.5


@dataclass(frozen=True, slots=True)
class Flip:
    """A replica, the role that it should take, and why."""

    replica: ReplicaRecord
    role: ReplicaRole
    reason: str


@dataclass(frozen=True, slots=True)
class Resize:
    """How many replicas a pool should have, how many it should have had, and why."""

    pool: Pool
    replicas: int
    before: int
    reason: str


class PoolController:
    """Looks at the members again and again; at most one change at a time.

    `wanted` is how many replicas pools were to have so far, where that is known.
    """

    def __init__(
        self, config: ScalingConfig, limits: LoadLimits, wanted: Mapping[Pool, int] | None = None
    ) -> None:
        self._config = config
        self._limits = limits
        self._wanted = {
            pool: min(max(count, config.bounds[pool].min), config.bounds[pool].max)
            for pool, count in (wanted or {}).items()
            if pool in config.bounds
        }
        self._sleepers = sorted(config.sleepers, reverse=True)  # prompts come first
        self._one_pool = False
        self._had: dict[Pool, int] = {}
        self._pressed_since: dict[Pool, float] = {}
        self._spare_since: dict[Pool, float] = {}
        self._idle_since: dict[Pool, float] = {}
        self._calm_since: float | None = None
        self._changed_s: float | None = None

    @property
    def wanted(self) -> dict[Pool, int]:
        """How many replicas each pool that scales should have now."""
        return dict(self._wanted)

    @property
    def missing(self) -> list[Pool]:
        """The pools that should have replicas and have none."""
        return [pool for pool, count in self._wanted.items() if count and not self._had.get(pool)]

    def decide(self, members: Iterable[ReplicaRecord], now: float) -> Flip | Resize | None:
        """The change to make now, if there is one; it is taken as made."""
        members = list(members)
        self._count(members)
        amounts = {pool: pressure(pool, members, self._limits) for pool in _OTHER}
        self._note(amounts, members, now)
        if (woken := self._wake(members)) is not None:
            return woken
        if self._changed_s is not None and now - self._changed_s < self._config.rest_s:
            return None
        workers = [record for record in members if record.role != "router"]
        change = self._relieve(workers, amounts, now) or self._give_back(workers, now)
        if change is not None:
            self._changed_s = now
        if isinstance(change, Resize):
            self._wanted[change.pool] = change.replicas
            self._begin_anew(change.pool)
        return change

    def _count(self, members: Sequence[ReplicaRecord]) -> None:
        """What pools have; where that changed, pressure and calm count from now on."""
        self._one_pool = any(record.home == "both" for record in members)
        for pool, bounds in self._config.bounds.items():
            have = sum(_at_home(record, pool) for record in members)
            if have != self._had.get(pool, have):
                self._begin_anew(pool)
            self._had[pool] = have
            if have and pool not in self._wanted:
                self._wanted[pool] = min(max(have, bounds.min), bounds.max)

    def _begin_anew(self, pool: Pool) -> None:
        self._pressed_since.pop(pool, None)
        self._spare_since.pop(pool, None)
        self._idle_since.pop(pool, None)

    def _note(
        self, amounts: Mapping[Pool, float], members: Sequence[ReplicaRecord], now: float
    ) -> None:
        for pool, amount in amounts.items():
            _since(self._pressed_since, pool, amount >= 1, now)
        for pool in self._config.bounds:
            _since(self._spare_since, pool, self._has_spare(pool, members), now)
        for pool in self._sleepers:
            _since(self._idle_since, pool, self._is_idle(pool, members), now)
        if max(amounts.values()) > _CALM:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    def _has_spare(self, pool: Pool, members: Sequence[ReplicaRecord]) -> bool:
        """Whether one replica less would be at most half pressed."""
        left = self._had[pool] - 1
        if left < 1 or any(unmet(one, members, self._limits) for one in self._works(pool)):
            return False
        works = self._works(pool)
        return all(shared(one, members, self._limits, left) <= _CALM for one in works)

    def _is_idle(self, pool: Pool, members: Sequence[ReplicaRecord]) -> bool:
        """Whether its one replica, at home, has nothing to do, and nobody waits for anything.

        Who waits in a router may wait for the other pool, and need this one after it.
        """
        own = [record for record in members if _at_home(record, pool)]
        waiting = any(one.role == "router" and one.load.waiting for one in members)
        wanted = waiting or any(unmet(one, members, self._limits) for one in self._works(pool))
        return len(own) == 1 and own[0].role == own[0].home and not (own[0].load.used or wanted)

    def _wake(self, members: Sequence[ReplicaRecord]) -> Resize | None:
        """A first replica for a pool that sleeps, at once: nobody is there to be relieved."""
        for pool in self._sleepers:
            asleep = not self._had.get(pool) and not self._wanted.get(pool)
            if asleep and any(unmet(one, members, self._limits) for one in self._works(pool)):
                self._wanted[pool] = 1
                self._begin_anew(pool)
                return Resize(pool, 1, 0, "a request waits and nobody is there")
        return None

    def _works(self, pool: Pool) -> tuple[Pool, ...]:
        """The work that a pool does: where there is one pool, it does all."""
        return ("decode", "prefill") if self._one_pool else (pool,)

    def _relieve(
        self, workers: Sequence[ReplicaRecord], amounts: Mapping[Pool, float], now: float
    ) -> Flip | Resize | None:
        for pool, since in self._pressed_since.items():
            if now - since < self._config.pressure_hold_s:
                continue
            lent = self._lend(pool, workers, amounts, now - since)
            if change := lent or self._grow(pool, now - since):
                return change
        return None

    def _lend(
        self,
        pool: Pool,
        workers: Sequence[ReplicaRecord],
        amounts: Mapping[Pool, float],
        pressed_s: float,
    ) -> Flip | None:
        lender, limits = _OTHER[pool], self._limits
        able = [record for record in workers if record.role == lender]
        if not (able and self._config.flip_roles) or amounts[lender] >= 1:
            return None
        record = min(able, key=lambda record: (used(lender, record, limits), record.id))
        rest = [r for r in workers if r.serves(lender) and r is not record]
        spread = sum(used(lender, r, limits) for r in (record, *rest)) / max(1, len(rest))
        role: ReplicaRole = pool if rest and spread <= _CALM else "both"
        return Flip(record, role, f"{pool} was pressed for {pressed_s:.1f} s")

    def _grow(self, pool: Pool, pressed_s: float) -> Resize | None:
        """More replicas for the pressed pool, once those that it should have are there."""
        grown: Pool = "decode" if self._one_pool else pool
        bounds, before = self._config.bounds.get(grown), self._wanted.get(grown)
        if bounds is None or before is None or self._had[grown] < before:
            return None
        after = min(before + self._config.step, bounds.max)
        if after <= before:
            return None
        return Resize(grown, after, before, f"{pool} was pressed for {pressed_s:.1f} s")

    def _give_back(self, workers: Sequence[ReplicaRecord], now: float) -> Flip | Resize | None:
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
                return Flip(record, home, f"no pool was pressed for {calm_s:.1f} s")
        return None

    def _shrink(self, now: float) -> Resize | None:
        for pool, since in self._idle_since.items():
            if now - since >= self._config.idle_s and self._wanted.get(pool) == 1:
                return Resize(pool, 0, 1, f"it had nothing to do for {now - since:.1f} s")
        for pool, since in self._spare_since.items():
            before, least = self._wanted[pool], self._config.bounds[pool].min
            leaving = self._had[pool] > before
            if now - since >= self._config.spare_s and before > least and not leaving:
                why = f"one {pool} replica was to spare for {now - since:.1f} s"
                return Resize(pool, before - 1, before, why)
        return None


def _at_home(record: ReplicaRecord, pool: Pool) -> bool:
    """Whether the replica belongs to that pool's deployment, whatever it does now."""
    return record.home == pool or (record.home == "both" and pool == "decode")


def _since(times: dict[Pool, float], pool: Pool, holds: bool, now: float) -> None:
    if holds:
        times.setdefault(pool, now)
    else:
        times.pop(pool, None)
