"""What an operator does from the console: stop a request, drain or kill a replica."""

from __future__ import annotations

import logging

from cluster.console.source import ReplicaEnd, unanswered
from cluster.router.console.parts import KnownCluster, OwnRouter
from cluster.router.peers.peer_calls import Peers
from cluster.rpc.role_control import request_end
from engine.errors import Cancelled, NotFound, Unavailable, shown
from protos.peer_pb2 import PeerQuestion, StopQuestion

log = logging.getLogger(__name__)


class OperatorActs:
    """Acts of operators from one router. Each is logged with the operator's name."""

    def __init__(self, own: OwnRouter, cluster: KnownCluster, peers: Peers) -> None:
        self._own = own
        self._cluster = cluster
        self._peers = peers

    async def stop_request(self, request_id: str, tenant: str, operator: str) -> None:
        """End a request that runs here or in another router.

        NotFound where none has that id, Unavailable where a router that may have it is silent.
        """
        if self.stop_here(request_id, tenant, operator):
            return
        stop = StopQuestion(request_id=request_id, tenant=tenant, operator=operator)
        asked = await self._peers.ask_all(PeerQuestion(stop=stop), lambda one: one.stop.found)
        if any(one.stop.found for one in asked.found.values()):
            return
        text = f"no request {shown(request_id)} of this tenant was found that runs"
        if asked.silent:
            raise Unavailable(text + unanswered(asked.silent))
        raise NotFound(text)

    def stop_here(self, request_id: str, tenant: str, operator: str) -> bool:
        """End a request that runs in this router; False where none has that id."""
        running = self._own.router.in_flight.find(tenant, request_id)
        if running is None or running.task is None:
            return False
        running.cancel(Cancelled("an operator stopped the request"))
        stopped = {"operator": operator, "request_id": request_id, "tenant": tenant}
        log.warning("request stopped by an operator", extra=stopped)
        return True

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
