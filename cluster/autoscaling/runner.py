"""The task that applies the decisions of the pools' controller. One router of several runs it.

The task flips roles itself, and publishes in the directory how many replicas each pool should have.
The replicas tell Ray Serve, which starts and ends them (`cluster/autoscaling/serve_policy.py`).
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
from cluster.rpc.role_control import request_role
from cluster.telemetry import router_metrics as metrics
from engine.errors import TandemError, Unavailable
from protos.wire.client import Connector

log = logging.getLogger(__name__)

# Bound: the time between two decisions of the controller.
_POLL_S = 0.5

# Called at each decision while a pool has none of its desired replicas.
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
        connector: Connector,
        wake: Wake | None = None,
        poll_s: float = _POLL_S,
    ) -> None:
        self._wake = wake
        self._poll_s = poll_s
        self._config = config
        self._limits = limits
        self._router_id = router_id
        self._pools = pools
        self._directory = directory
        self._connector = connector
        self._controller: PoolController | None = None

    async def run(self) -> None:
        """Decide and apply for ever."""
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                await self._poll()
            except Unavailable as error:
                # Replicas and Serve keep their last roles and numbers.
                log.debug("the pools stay as they are", extra={"reason": error.message})
            except Exception:
                log.exception("the pools could not be scaled")

    async def _poll(self) -> None:
        members = self._pools.members()
        # A router that leaves decides nothing more, and its last streams may take long.
        routers = [one.id for one in members if one.role == "router" and not one.leaving]
        if min(routers, default=self._router_id) != self._router_id:
            self._step_back()
            return
        if self._controller is None:
            desired = await self._directory.desired() if self._config.bounds else {}
            self._controller = PoolController(self._config, self._limits, desired)
        trusted = [self._pools.latest(one) for one in members if self._counts(one)]
        change = self._controller.decide(trusted, time.monotonic())
        if isinstance(change, Flip):
            await self._flip_role(change)
        elif change is not None:
            _log_resize(change)
        await self._publish(self._controller)
        if self._wake is not None:
            for pool in self._controller.missing:
                self._wake(pool)

    async def _flip_role(self, flip: Flip) -> None:
        fields = {"replica": flip.replica.id, "role": flip.role, "reason": flip.reason}
        try:
            await request_role(self._connector, flip.replica, flip.role)
            log.info("role flipped", extra=fields)
        except TandemError as error:
            log.warning("role not flipped", extra=fields | {"error": error.message})

    def _step_back(self) -> None:
        """Leave the pools to another router, and show 0: the largest value of all counts."""
        if self._controller is not None:
            for pool in self._controller.desired:
                metrics.DESIRED.set(0, pool=pool)
        self._controller = None

    def _counts(self, record: ReplicaRecord) -> bool:
        """Whether the record is of a staying replica, or of a router with requests for these pools.

        A router that leaves still has the requests that it took, for its own weights alone.
        """
        pools = self._pools
        if record.leaving and not (record.role == "router" and pools.ours(record)):
            return False
        return pools.trusted(record) and (record.role == "router" or pools.ours(record))

    async def _publish(self, controller: PoolController) -> None:
        """Publish also what has not changed, because the directory forgets it after a while."""
        desired = controller.desired
        for pool, count in desired.items():
            metrics.DESIRED.set(count, pool=pool)
        if desired:
            await self._directory.set_desired(desired)


def _log_resize(change: Resize) -> None:
    fields = {"pool": change.pool, "replicas": change.replicas, "before": change.before}
    log.info("pool resized", extra=fields | {"reason": change.reason})
