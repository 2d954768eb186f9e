"""A router process without Ray: takes a directory's address, and prints those of its front ends.

Its model is `endless_model`: the bundled model with a context that is too long to be filled.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.core.event_loop import run
from bench.router.site_tls import tls_of
from cluster.config.endpoints import EndpointConfig, FlushConfig
from cluster.config.journal import JournalConfig
from cluster.config.request_log import RequestLogConfig, TracingConfig
from cluster.config.schema import TandemConfig, located
from cluster.config.security import SecurityConfig
from cluster.config.tenant_limits import TenantConfig
from cluster.discovery.redis_directory import Directory
from cluster.replica.gc_tuning import settle
from cluster.router.server import RouterServer
from protos.wire.secret import made

_SECRET = "secret"
# No request is refused, although the replicas do not compute.
_ANY = EndpointConfig(max_output_tokens=1_000_000, ttft_budget_ms=60_000, itl_budget_ms=600_000)
# `each` sends every token by itself, `coalesced` as the default endpoint does.
ENDPOINTS = {
    "each": replace(_ANY, stream="tokens"),
    "coalesced": replace(_ANY, flush=FlushConfig(40, 24)),
    # Nearly all requests are refused, if the replicas are slow.
    "tight": replace(_ANY, ttft_budget_ms=500),
}


def endless_model(folder: Path) -> str:
    """A copy of the bundled model, by links, whose context has a million tokens; its path.

    The folder has a secret for the cluster, too.
    """
    source = Path(located("demo"))
    for file in source.iterdir():
        if file.is_file() and file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    config["max_position_embeddings"] = 1_000_000
    (folder / "config.json").write_text(json.dumps(config))
    made(folder / _SECRET)
    return str(folder)


def config_for(url: str, model: str) -> TandemConfig:
    """The defaults, on free ports, for many requests, and with all prompts on prefill replicas."""
    base = TandemConfig()
    return replace(
        base,
        model=replace(base.model, path=model),
        router=replace(base.router, http_port=0, grpc_port=0, max_requests=4096, max_waiting=4096),
        prefill=replace(base.prefill, local_prefill_tokens=0),
        decode=replace(base.decode, max_batch=4096),
        endpoints=ENDPOINTS,
        tenants={"default": TenantConfig(max_concurrent=4096)},
        directory=replace(base.directory, url=url),
        journal=JournalConfig(detached_s=0.0, stream_bytes=1 << 30, total_bytes=1 << 40),
        security=SecurityConfig(secret_file=str(Path(model) / _SECRET)),
        tls=tls_of(Path(model)),
    )


async def main(url: str, model: str, rows: str = "", otlp: str = "") -> None:
    """Serve until standard input ends. `rows` and `otlp` take rows and traces, if named.

    They do so from a SIGUSR1 to a SIGUSR2.
    """
    config = config_for(url, model)
    if rows:
        config = replace(config, request_log=RequestLogConfig(folder=rows))
    if otlp:
        config = replace(config, tracing=TracingConfig(otlp=otlp, most_per_s=1000.0))
    directory = Directory.of(config)
    router = await RouterServer.start(config, "router-0", directory)
    log = router.requests
    files, tracer = log.files, log.tracer

    def observe(*, on: bool) -> None:
        log.files, log.tracer = (files, tracer) if on else (None, None)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, partial(observe, on=True))
    loop.add_signal_handler(signal.SIGUSR2, partial(observe, on=False))
    observe(on=False)
    settle()
    print(json.dumps({"grpc": router.grpc_address, "http": router.http_address}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    observe(on=True)
    await router.stop()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
