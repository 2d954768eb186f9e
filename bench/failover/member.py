"""A router or a replica of a real cluster without Ray, in a process of its own.

    python -m bench.failover.member ROLE NAME URL FOLDER MODEL [cable]

FOLDER gets the log, `NAME.log`, and has the secret of the cluster. With `cable`, other members
reach a replica through a proxy alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from bench.core.event_loop import run
from bench.failover.cable import Cable, lay
from cluster.config.endpoints import EndpointConfig
from cluster.config.schema import TandemConfig, located
from cluster.config.security import SecurityConfig
from cluster.discovery.redis_directory import Directory
from cluster.replica import replica as replica_module
from cluster.replica.gc_tuning import settle
from cluster.replica.replica import Replica
from cluster.replica.servers import ReplicaServers
from cluster.replica_record import ReplicaRole
from cluster.router.server import RouterServer
from cluster.telemetry.logging_setup import configure_logging

SECRET = "secret"
_HOST = "127.0.0.1"
# Tokens of KV in a replica: the streams of all replicas fit into one.
_BLOCKS, _BLOCK_SIZE = 4000, 16


def config_for(url: str, folder: Path, model: str) -> TandemConfig:
    """The defaults, in float32 and on free ports. No request is refused for a slow machine."""
    base = TandemConfig()
    return replace(
        base,
        model=replace(base.model, path=located(model), dtype="float32"),
        kv=replace(base.kv, blocks=_BLOCKS, block_size=_BLOCK_SIZE),
        router=replace(base.router, http_port=0, grpc_port=0),
        endpoints={
            "chat": EndpointConfig(
                ttft_budget_ms=600_000, itl_budget_ms=600_000, max_output_tokens=4096
            )
        },
        directory=replace(base.directory, url=url),
        security=SecurityConfig(secret_file=str(folder / SECRET)),
    )


class BehindCable(ReplicaServers):
    """The servers of a replica that is known under the address of its `cable`."""

    cable: Cable | None = None

    @classmethod
    def bind(cls, *arguments: Any) -> Self:
        """Take a free port, and lay a cable to it."""
        servers = super().bind(*arguments)
        cls.cable = lay(int(servers.address.rpartition(":")[2]))
        servers.address = cls.cable.address
        return servers


async def main(role: str, name: str, url: str, folder: Path, model: str, cable: str = "") -> None:
    """Serve until standard input ends; prints a line with its addresses once it is ready."""
    if cable:
        replica_module.ReplicaServers = BehindCable  # type: ignore[attr-defined]
    config = config_for(url, folder, model)
    directory = Directory.of(config)
    with (folder / f"{name}.log").open("w", buffering=1) as log:
        configure_logging("info", log, name)
        stop = None
        if role == "router":
            router = await RouterServer.start(config, name, directory)
            address, stop = router.grpc_address, router.stop
        else:
            pool: ReplicaRole = "prefill" if role == "prefill" else "decode"
            replica = await Replica.start(config, pool, name, _HOST, directory)
            address, stop = replica.address, replica.stop
        settle()
        laid = BehindCable.cable
        print(json.dumps({"address": address, "cable": laid and laid.pid}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await stop()
    await directory.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, role, name, url, folder, model, *more = sys.argv
    run(main(role, name, url, Path(folder), model, *more))
