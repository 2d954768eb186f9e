"""The section `scaling`: how far pools grow, and how readily they change."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.replica_record import Pool
from engine.config import require


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """The fewest and the most replicas that a pool may have; with `min` 0 it sleeps when idle."""

    min: int = 1
    max: int = 1

    def __post_init__(self) -> None:
        require(self.min >= 0, "min must not be negative")
        require(self.max >= max(1, self.min), "max must be at least min, and at least 1")


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """When `flip_roles` lends replicas between the pools, and the bounds of pools that scale.

    Both are off unless asked for. Prefill is pressed when a prompt would wait for `queue_s`, decode
    when `in_use` of its blocks or of its batch is taken, or tokens come too far apart. A pool gets
    at most `step` replicas at a time. `batch`: work of the batch lane is pressure, too. One whose
    `min` is 0 loses its last replica after `idle_s` without work; until a start was measured it is
    taken to need `start_s`.
    """

    flip_roles: bool = False
    prefill: PoolBounds | None = None
    decode: PoolBounds | None = None
    step: int = 1
    batch: bool = False
    queue_s: float = 1.0
    in_use: float = 0.9
    pressure_hold_s: float = 2.0
    calm_s: float = 20.0
    rest_s: float = 5.0
    spare_s: float = 120.0
    idle_s: float = 300.0
    start_s: float = 30.0

    def __post_init__(self) -> None:
        require(self.queue_s > 0, "queue_s must be positive")
        require(0 < self.in_use <= 1, "in_use must be in (0, 1]")
        require(self.step >= 1, "step must be at least 1")
        require(self.pressure_hold_s >= 0, "pressure_hold_s must not be negative")
        require(self.calm_s >= self.pressure_hold_s, "calm_s must be at least pressure_hold_s")
        require(self.spare_s >= self.pressure_hold_s, "spare_s must be at least pressure_hold_s")
        require(self.rest_s >= 0, "rest_s must not be negative")
        require(self.idle_s > 0, "idle_s must be positive")
        require(self.start_s > 0, "start_s must be positive")

    @property
    def bounds(self) -> dict[Pool, PoolBounds]:
        """Those of the pools that scale."""
        given: dict[Pool, PoolBounds | None] = {"prefill": self.prefill, "decode": self.decode}
        return {pool: bounds for pool, bounds in given.items() if bounds is not None}

    @property
    def sleepers(self) -> frozenset[Pool]:
        """The pools that may have no replicas."""
        return frozenset(pool for pool, one in self.bounds.items() if one.min == 0)

    @property
    def active(self) -> bool:
        """Whether there is anything to decide."""
        return self.flip_roles or bool(self.bounds)
