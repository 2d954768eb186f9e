"""A whole cluster in one process: real engines, links, gRPC, HTTP and Redis; only Ray is left out.

Replicas share the event loop, each with an engine thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cluster.config.schema import TandemConfig
from cluster.discovery.redis_directory import Directory
from cluster.replica.replica import Replica
from cluster.replica_record import ReplicaRole
from cluster.router.server import RouterServer
from cluster.tenants.hashed_keys import hash_of
from tandem_client import Client
from tests.eventually import eventually

HOST = "127.0.0.1"
OPERATOR_KEY = "the operator's key of the test"


@dataclass
class LocalCluster:
    """Its parts, and a client of its gRPC front end."""

    config: TandemConfig
    directory: Directory
    prefill: list[Replica]
    decode: list[Replica]
    router: RouterServer
    client: Client

    @property
    def replicas(self) -> list[Replica]:
        return [*self.prefill, *self.decode]

    async def idle(self, timeout_s: float = 20.0) -> None:
        """Wait until no replica holds a block or a request; raises TimeoutError."""
        await eventually(lambda: not any(in_use(replica) for replica in self.replicas), timeout_s)


def in_use(replica: Replica) -> int:
    """Blocks and requests that a replica holds."""
    return replica.load().used


def slow_steps(replicas: Iterable[Replica], seconds: float) -> None:
    """Each decode step takes `seconds` longer there, so that streams do not end early."""
    for replica in replicas:
        engine = replica.parts.model.engine

        def slow(spans, forward=engine.forward):
            time.sleep(seconds)
            return forward(spans)

        engine.forward = slow


@asynccontextmanager
async def cluster(config: TandemConfig, name: str = "") -> AsyncIterator[LocalCluster]:
    """Start everything, wait until the router sees it, and stop everything.

    `name` begins the ids of its parts, where another cluster is in the same directory.
    """
    directory = Directory.of(config)
    replicas: dict[ReplicaRole, list[Replica]] = {"prefill": [], "decode": []}
    pools = (
        ("prefill", "prefill", config.prefill.replicas),
        ("decode", config.decode_role, config.decode.replicas),
    )
    for pool, role, count in pools:
        for number in range(count):
            replica = await Replica.start(config, role, f"{name}{pool}-{number}", HOST, directory)
            replicas[pool].append(replica)
    router = await RouterServer.start(
        config, f"{name}router-0", directory, operators=[hash_of(OPERATOR_KEY)]
    )
    try:
        async with Client(router.grpc_address) as client:
            yield LocalCluster(
                config, directory, replicas["prefill"], replicas["decode"], router, client
            )
    finally:
        await router.stop()
        for replica in (*replicas["decode"], *replicas["prefill"]):
            await replica.stop()
        await directory.close()
