"""When a replica should take another role for a while. Pure, with hysteresis.

A pool is *pressed* while even its least loaded replica is: of prefill by the predicted wait of a
new prompt, of decode by its blocks and its batch. After `hold_s` of pressure a replica of the other
pool is lent: wholly where others can carry its work, else in role `both`. After `calm_s` in which
no pool was more than half pressed, one that was lent goes home. Between two changes there are
`rest_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.membership import Pool, ReplicaRecord, ReplicaRole
from engine.config import require

_OTHER: dict[Pool, Pool] = {"prefill": "decode", "decode": "prefill"}
# The part of its limits that a pool may have reached and still be calm, or carry one replica less.
_CALM = 0.5


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """When `flip_roles` lends replicas between the pools; off unless asked for.

    Prefill is pressed when a prompt would wait for `queue_s`, decode when `in_use` of its blocks or
    of its batch is taken.
    """

    flip_roles: bool = False
    queue_s: float = 1.0
    in_use: float = 0.9
    hold_s: float = 2.0
    calm_s: float = 20.0
    rest_s: float = 5.0

    def __post_init__(self) -> None:
        require(self.queue_s > 0, "queue_s must be positive")
        require(0 < self.in_use <= 1, "in_use must be in (0, 1]")
        require(self.hold_s >= 0, "hold_s must not be negative")
        require(self.calm_s >= self.hold_s, "calm_s must be at least hold_s")
        require(self.rest_s >= 0, "rest_s must not be negative")


@dataclass(frozen=True, slots=True)
class Flip:
    """A replica, the role that it should take, and why."""

    replica: ReplicaRecord
    role: ReplicaRole
    reason: str


class RoleController:
    """Looks at the members again and again; at most one change at a time."""

    def __init__(self, config: ScalingConfig) -> None:
        self._config = config
        self._pressed_since: dict[Pool, float] = {}
        self._calm_since: float | None = None
        self._changed_s: float | None = None

    def decide(self, members: Iterable[ReplicaRecord], now: float) -> Flip | None:
        """The change to make now, if there is one; it is taken as made."""
        workers = [record for record in members if record.role != "router"]
        pressure = {pool: self._pressure(pool, workers) for pool in _OTHER}
        self._note(pressure, now)
        if self._changed_s is not None and now - self._changed_s < self._config.rest_s:
            return None
        flip = self._lend(workers, pressure, now) or self._send_home(workers, now)
        if flip is not None:
            self._changed_s = now
        return flip

    def _note(self, pressure: dict[Pool, float], now: float) -> None:
        for pool, amount in pressure.items():
            if amount < 1:
                self._pressed_since.pop(pool, None)
            else:
                self._pressed_since.setdefault(pool, now)
        if max(pressure.values()) > _CALM:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    def _pressure(self, pool: Pool, workers: Sequence[ReplicaRecord]) -> float:
        """How pressed the pool is, by its least loaded replica; 1: at its limit."""
        found = [self._used(pool, record) for record in workers if record.serves(pool)]
        return min(found, default=0.0)

    def _used(self, pool: Pool, record: ReplicaRecord) -> float:
        load = record.load
        if pool == "prefill":
            speed = load.prompt_tokens_per_s
            return load.prompt_tokens_due / speed / self._config.queue_s if speed else 0.0
        blocks = load.blocks_used / max(1, load.blocks_total)
        batch = load.streams / max(1, load.batch_limit)
        return max(blocks, batch) / self._config.in_use

    def _lend(
        self, workers: Sequence[ReplicaRecord], pressure: dict[Pool, float], now: float
    ) -> Flip | None:
        for pool, since in self._pressed_since.items():
            lender = _OTHER[pool]
            able = [record for record in workers if record.role == lender]
            if now - since < self._config.hold_s or not able or pressure[lender] >= 1:
                continue
            record = min(able, key=lambda record: (self._used(lender, record), record.id))
            rest = [r for r in workers if r.serves(lender) and r is not record]
            spread = sum(self._used(lender, r) for r in (record, *rest)) / max(1, len(rest))
            role: ReplicaRole = pool if rest and spread <= _CALM else "both"
            return Flip(record, role, f"{pool} was pressed for {now - since:.1f} s")
        return None

    def _send_home(self, workers: Sequence[ReplicaRecord], now: float) -> Flip | None:
        calm_s = 0.0 if self._calm_since is None else now - self._calm_since
        if self._calm_since is None or calm_s < self._config.calm_s:
            return None
        for record in sorted(workers, key=lambda record: record.id):
            home = record.home
            if home is None or home == record.role:
                continue
            roles = {home if other is record else other.role for other in workers}
            if "both" in roles or roles >= set(_OTHER):
                return Flip(record, home, f"no pool was pressed for {calm_s:.1f} s")
        return None
