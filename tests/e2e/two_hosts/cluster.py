"""A Ray cluster on two hosts that are alike: a router, a prefill and a decode replica on each.

host redis     the Redis of directory.url and of Ray's fault tolerance
host head      Ray's head, and Serve's controller; no replicas
host one       a node that offers the custom resources of all pools
host two       the same
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from types import MappingProxyType

from tests.e2e.hosts.ray_hosts import POOLS, RayHosts
from tests.helm.chart import Object

HOSTS = ("one", "two")
NAMES = ("redis", "head", *HOSTS)
_REPLICA = "ray::ServeReplica"


class TwoHosts(RayHosts):
    """As its base, with other hosts."""

    chart_pools: Mapping[str, Object] = MappingProxyType({"router": {"pods": 2}})
    workers = HOSTS

    @property
    def grpc(self) -> str:
        """The address of the first host's router."""
        return self.router("one")

    def router(self, name: str) -> str:
        """The address of the router of a host."""
        return f"{self.host(name).address}:50051"

    def kill_replica(self, name: str, pool: str) -> None:
        """Kill -9 the replica of a pool on a host."""
        found = self.host(name).processes().items()
        replicas = {pid: title for pid, title in found if title.startswith(_REPLICA)}
        (pid,) = [pid for pid, title in replicas.items() if f":{pool}" in title]
        os.kill(pid, signal.SIGKILL)

    async def is_complete(self) -> bool:
        """Whether the first host's router finds a healthy replica of each pool on each host."""
        healthy = [one for one in await self.replicas() if one.healthy]
        where = {(one.role, one.address.rpartition(":")[0]) for one in healthy}
        return {(pool, self.host(name).address) for pool in POOLS for name in HOSTS} <= where

    def _group(self, name: str) -> Object:
        group = super()._group("decode")
        offered = json.dumps({f"tandem_{pool}": 1 for pool in POOLS})
        parameters = {"num-cpus": "16", "resources": offered}
        return group | {"rayStartParams": group["rayStartParams"] | parameters}
