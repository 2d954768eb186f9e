"""The section `scaling`: how far pools grow, and how readily they change."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.replica_record import Pool
from engine.config import require


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """How many replicas a pool may have."""

    min: int = 1
    """The fewest replicas; with 0 the pool sleeps when it is idle."""
    max: int = 1
    """The most replicas."""

    def __post_init__(self) -> None:
        require(self.min >= 0, "min must not be negative")
        require(self.max >= max(1, self.min), "max must be at least min, and at least 1")


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """When replicas change pools, and the bounds of pools that scale; both are off by default."""

    flip_roles: bool = False
    """Whether a pool under pressure gets a replica of the other pool by a role flip."""
    prefill: PoolBounds | None = None
    """The bounds of the prefill pool; without them it keeps its size."""
    decode: PoolBounds | None = None
    """The bounds of the decode pool; without them it keeps its size."""
    step: int = 1
    """Replicas that a pool gets at a time."""
    batch: bool = False
    """Whether work of the lane `batch` counts as pressure too."""
    queue_s: float = 1.0
    """The prefill pool is under pressure when a prompt would wait so long."""
    in_use: float = 0.9
    """The decode pool is under pressure when that part of its blocks or its batch is taken."""
    pressure_hold_s: float = 2.0
    """How long pressure lasts before a pool changes."""
    calm_s: float = 20.0
    """How long calm lasts before a pool changes."""
    rest_s: float = 5.0
    """The least time between two changes."""
    spare_s: float = 120.0
    """How long the remaining replicas must have spare capacity before one replica is taken away."""
    idle_s: float = 300.0
    """A pool with `min: 0` loses its last replica after so long without work."""
    start_s: float = 30.0
    """What a start from zero is taken to need until one was measured; a longer start is logged."""

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
        """The bounds of the pools that scale."""
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
