"""The parts of a router that operators see and act on, and the doors that lead to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.config.schema import TandemConfig
from cluster.console.app import Console
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import ReplicaRecord
from cluster.router.admin_service import AdminServicer
from cluster.router.console.acts import OperatorActs
from cluster.router.console.view import RouterView
from cluster.router.peer_exchange import PeerExchange
from cluster.router.router import Router
from cluster.rpc.membership import Membership
from cluster.telemetry.requests.store import RequestStore
from cluster.tenants.api_keys import ApiKeys


@dataclass(frozen=True, slots=True)
class OperatorAccess:
    """The parts of the router `name`. `keys` are those of clients, `operators` those of operators.

    `latest` adds the newest load to a record.
    """

    name: str
    config: TandemConfig
    router: Router
    pools: HealthyReplicas
    directory: Directory
    membership: Membership
    exchange: PeerExchange
    rows: RequestStore
    keys: ApiKeys | None
    operators: ApiKeys
    latest: Callable[[ReplicaRecord], ReplicaRecord]

    def admin(self) -> AdminServicer:
        """The gRPC service of operators' commands."""
        return AdminServicer(
            self.pools,
            self.directory,
            self.config,
            self.operators,
            self.membership,
            self.exchange.canaries,
            self.latest,
            self.router.forget_streams,
            self.rows,
        )

    def console(self) -> Console:
        """The page of operators."""
        view = RouterView(
            self.name,
            self.config,
            self.router,
            self.pools,
            self.directory,
            self.exchange,
            self.rows,
            self.latest,
        )
        acts = OperatorActs(self.router, self.pools, self.directory, self.membership)
        return Console(view, acts, self.keys, self.operators)
