"""The parts of a router that operators see and act on, by what they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.config.schema import TandemConfig
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.placement.placement import Placement
from cluster.replica_record import ReplicaRecord
from cluster.router.peer_exchange import PeerExchange
from cluster.router.peers.peer_calls import Peers
from cluster.router.router import Router
from cluster.rpc.membership import Membership
from cluster.telemetry.requests.store import RequestStore
from cluster.tenants.api_keys import ApiKeys


@dataclass(frozen=True, slots=True)
class OwnRouter:
    """The router `name` itself: its requests that run, and the rows of those that ended."""

    name: str
    config: TandemConfig
    router: Router
    exchange: PeerExchange
    rows: RequestStore


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """The rest of the cluster as this router knows and reaches it; `peers` are the other routers.

    `latest` adds the newest load to a record, because the directory learns of it once a second.
    `placement` has learned what the replicas' work costs, and counts what it promised them.
    """

    pools: HealthyReplicas
    directory: Directory
    membership: Membership
    latest: Callable[[ReplicaRecord], ReplicaRecord]
    peers: Peers
    placement: Placement = field(default_factory=Placement)


@dataclass(frozen=True, slots=True)
class FrontEndKeys:
    """The keys of `clients`, None where none are configured, and those of `operators`."""

    clients: ApiKeys | None
    operators: ApiKeys
