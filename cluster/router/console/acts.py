"""What an operator does from the console: stop a request, drain or kill a replica."""

from __future__ import annotations

import logging

from cluster.console.source import ReplicaEnd
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.router.router import Router
from cluster.rpc.membership import Membership
from cluster.rpc.role_control import request_end
from engine.errors import Cancelled, NotFound, Unavailable, shown

log = logging.getLogger(__name__)


class OperatorActs:
    """Acts of operators on one router. Each is logged with the operator's name."""

    def __init__(
        self, router: Router, pools: HealthyReplicas, directory: Directory, membership: Membership
    ) -> None:
        self._router = router
        self._pools = pools
        self._directory = directory
        self._membership = membership

    async def stop_request(self, request_id: str, tenant: str, operator: str) -> None:
        """End a request that runs here; NotFound where none has that id."""
        running = self._router.in_flight.find(tenant, request_id)
        if running is None or running.task is None:
            raise NotFound(f"no request {shown(request_id)} of this tenant runs in this router")
        running.cancel(Cancelled("an operator stopped the request"))
        stopped = {"operator": operator, "request_id": request_id, "tenant": tenant}
        log.warning("request stopped by an operator", extra=stopped)

    async def end_replica(self, replica: str, how: ReplicaEnd, operator: str) -> None:
        """Drain or kill a replica, which Ray Serve replaces.

        Unavailable in a cluster that `tandem serve` did not start, NotFound for an unknown id.
        """
        if await self._directory.launcher() is None:
            raise Unavailable(
                f"this cluster was not started by `tandem serve`: {how} its replicas where they run"
            )
        members = [one for one in self._pools.members() if one.role != "router"]
        record = next((one for one in members if one.id == replica), None)
        if record is None:
            raise NotFound(f"there is no replica {shown(replica)}", field="replica")
        await request_end(self._membership.connector(), record, at_once=how == "kill")
        ended = {"operator": operator, "replica": replica, "how": how}
        log.warning("replica ended by an operator", extra=ended)
