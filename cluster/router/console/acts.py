"""What an operator does from the console: stop a request, drain or kill a replica."""

from __future__ import annotations

import logging

from cluster.console.source import ReplicaEnd, unanswered
from cluster.router.console.parts import KnownCluster, OwnRouter
from cluster.rpc.role_control import request_end
from engine.errors import NotFound, Unavailable, shown

log = logging.getLogger(__name__)


class OperatorActs:
    """Acts of operators from one router. Each is logged with the operator's name."""

    def __init__(self, own: OwnRouter, cluster: KnownCluster) -> None:
        self._stops = own.router.stops
        self._cluster = cluster

    async def stop_request(self, request_id: str, tenant: str, operator: str) -> None:
        """End a request that runs here or in another router.

        NotFound where none has that id, Unavailable where a router that may have it is silent.
        """
        outcome = await self._stops.anywhere(request_id, tenant, operator)
        if outcome.found:
            return
        text = f"no request {shown(request_id)} of this tenant was found that runs"
        if outcome.silent:
            raise Unavailable(text + unanswered(outcome.silent))
        raise NotFound(text)

    async def end_replica(self, replica: str, how: ReplicaEnd, operator: str) -> None:
        """Drain or kill a replica, which Ray Serve replaces.

        Unavailable in a cluster that `tandem serve` did not start, NotFound for an unknown id.
        """
        if await self._cluster.directory.launcher() is None:
            raise Unavailable(
                f"this cluster was not started by `tandem serve`: {how} its replicas where they run"
            )
        members = [one for one in self._cluster.pools.members() if one.role != "router"]
        record = next((one for one in members if one.id == replica), None)
        if record is None:
            raise NotFound(f"there is no replica {shown(replica)}", field="replica")
        await request_end(self._cluster.membership.connector(), record, at_once=how == "kill")
        ended = {"operator": operator, "replica": replica, "how": how}
        log.warning("replica ended by an operator", extra=ended)
