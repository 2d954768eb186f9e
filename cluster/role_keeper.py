"""The task that lends replicas between the pools; of several routers one does it."""

from __future__ import annotations

import asyncio
import logging
import time

from cluster.control import ask_role
from cluster.pools import Pools
from cluster.scaling import Flip, RoleController, ScalingConfig
from engine.errors import TandemError

log = logging.getLogger(__name__)

_LOOK_S = 0.5


class RoleKeeper:
    """Asks the controller twice a second while its router is the one with the least id."""

    def __init__(self, config: ScalingConfig, router_id: str, pools: Pools) -> None:
        self._controller = RoleController(config)
        self._router_id = router_id
        self._pools = pools

    async def run(self) -> None:
        """Look and change for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            members = self._pools.members()
            routers = [record.id for record in members if record.role == "router"]
            if min(routers, default=self._router_id) != self._router_id:
                continue
            trusted = [record for record in members if self._pools.trusted(record)]
            flip = self._controller.decide(trusted, time.monotonic())
            if flip is not None:
                await _give(flip)


async def _give(flip: Flip) -> None:
    fields = {"replica": flip.replica.id, "role": flip.role, "reason": flip.reason}
    try:
        await ask_role(flip.replica, flip.role)
        log.info("role given", extra=fields)
    except TandemError as error:
        log.warning("role not given", extra=fields | {"error": error.message})
