"""A router or a replica of a real cluster without Ray, in a process of its own.

    python -m bench.failover.member ROLE NAME URL FOLDER MODEL

FOLDER gets the log, `NAME.log`, and has the secret of the cluster.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from bench.core.event_loop import run
from cluster.config.endpoints import EndpointConfig
from cluster.config.schema import TandemConfig, located
from cluster.config.security import SecurityConfig
from cluster.discovery.redis_directory import Directory
from cluster.replica.gc_tuning import settle
from cluster.replica.replica import Replica
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


async def main(role: str, name: str, url: str, folder: Path, model: str) -> None:
    """Serve until standard input ends; prints a line with the router's address once ready."""
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
        print(json.dumps({"address": address}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await stop()
    await directory.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5]))
