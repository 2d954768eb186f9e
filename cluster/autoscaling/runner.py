"""The task that puts the pools' controller to work; of several routers one does it.

It lends replicas itself, and leaves in the directory how many each pool should have: the replicas
tell Ray Serve, which starts and ends them (`cluster/autoscaling/serve_policy.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from cluster.autoscaling.controller import Flip, PoolController, Resize
from cluster.autoscaling.load_signals import LoadLimits
from cluster.config.autoscaling import ScalingConfig
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import Pool, ReplicaRecord
from cluster.rpc.role_control import ask_role
from cluster.telemetry import router_metrics as metrics
from engine.errors import TandemError, Unavailable

log = logging.getLogger(__name__)

_LOOK_S = 0.5

# Called again and again while a pool that is to have replicas has none.
Wake = Callable[[Pool], None]


class AutoscalingRunner:
    """Asks the controller twice a second while its router is the one with the least id."""

    def __init__(
        self,
        config: ScalingConfig,
        limits: LoadLimits,
        router_id: str,
        pools: HealthyReplicas,
        directory: Directory,
        wake: Wake | None = None,
    ) -> None:
        self._wake = wake
        self._config = config
        self._limits = limits
        self._router_id = router_id
        self._pools = pools
        self._directory = directory
        self._controller: PoolController | None = None

    async def run(self) -> None:
        """Look and change for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except Unavailable as error:
                # Replicas and Serve stay with what they were told last.
                log.debug("the pools stay as they are", extra={"reason": error.message})
            except Exception:
                log.exception("the pools could not be looked at")

    async def _look(self) -> None:
        members = self._pools.members()
        # One that leaves keeps nothing any more, and its last streams may take long.
        routers = [one.id for one in members if one.role == "router" and not one.leaving]
        if min(routers, default=self._router_id) != self._router_id:
            self._step_back()
            return
        if self._controller is None:
            wanted = await self._directory.wanted() if self._config.bounds else {}
            self._controller = PoolController(self._config, self._limits, wanted)
        trusted = [self._pools.latest(one) for one in members if self._counts(one)]
        change = self._controller.decide(trusted, time.monotonic())
        if isinstance(change, Flip):
            await _give(change)
        elif change is not None:
            _tell(change)
        await self._publish(self._controller)
        if self._wake is not None:
            for pool in self._controller.missing:
                self._wake(pool)

    def _step_back(self) -> None:
        """Another router keeps the pools now; of all that show what is wanted the most counts."""
        if self._controller is not None:
            for pool in self._controller.wanted:
                metrics.WANTED.set(0, pool=pool)
        self._controller = None

    def _counts(self, record: ReplicaRecord) -> bool:
        """Whether it is one of the replicas that stay, or a router with requests for them.

        One that leaves has those that it took before, and for no other weights.
        """
        pools = self._pools
        if record.leaving and not (record.role == "router" and pools.ours(record)):
            return False
        return pools.trusted(record) and (record.role == "router" or pools.ours(record))

    async def _publish(self, controller: PoolController) -> None:
        """Also where nothing changed: what the directory has ends after a while."""
        wanted = controller.wanted
        for pool, count in wanted.items():
            metrics.WANTED.set(count, pool=pool)
        if wanted:
            await self._directory.set_wanted(wanted)


def _tell(change: Resize) -> None:
    fields = {"pool": change.pool, "replicas": change.replicas, "before": change.before}
    log.info("pool resized", extra=fields | {"reason": change.reason})


async def _give(flip: Flip) -> None:
    fields = {"replica": flip.replica.id, "role": flip.role, "reason": flip.reason}
    try:
        await ask_role(flip.replica, flip.role)
        log.info("role given", extra=fields)
    except TandemError as error:
        log.warning("role not given", extra=fields | {"error": error.message})
