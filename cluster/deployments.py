"""The Ray Serve application `tandem`: a deployment per pool and one of routers.

Each is a thin shell around one class. Without prefill replicas there is no prefill deployment.

Serve places the replicas, checks their health, restarts and scales them. Requests do not pass
through it: each replica serves a gRPC port of its own. On a cluster that somebody else runs, name
`cluster.deployments:application` as the import path, with the configuration file as an argument.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray.util.metrics
from ray import serve
from ray.serve.schema import LoggingConfig

from cluster.config import TandemConfig, load_config
from cluster.directory import Directory
from cluster.logs import configure_logging
from cluster.membership import ReplicaRole
from cluster.metrics_backends import RayBackend
from engine import telemetry
from engine.errors import ConfigError

APPLICATION = "tandem"
DRAIN_S = 10.0
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# One heap that keeps what it has: a step's temporaries would else be given back to the system and
# faulted in anew, step after step, as threads other than the first have small heaps of their own.
_ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


class PoolReplica:
    """One engine in a Serve replica; registers under Serve's unique id, never the rank."""

    async def __init__(  # type: ignore[misc]
        self, config: TandemConfig, role: ReplicaRole, memory_share: int
    ) -> None:
        from cluster.replica import Replica

        configure_logging()
        telemetry.install(RayBackend(ray.util.metrics))
        self._directory = Directory.connect(config.directory)
        self._replica = await Replica.start(
            config, role, _replica_id(), _host(config), self._directory, memory_share
        )

    def check_health(self) -> None:
        """Called by Serve every second; raises when the replica must be replaced."""
        self._replica.check_health()

    async def __del__(self) -> None:
        """Awaited by Serve before the replica ends, also where it never came up."""
        await _end(getattr(self, "_replica", None), getattr(self, "_directory", None))


class RouterReplica:
    """One router in a Serve replica."""

    async def __init__(self, config: TandemConfig, *_pools: object) -> None:  # type: ignore[misc]
        from cluster.router_server import RouterServer

        configure_logging()
        telemetry.install(RayBackend(ray.util.metrics))
        self._directory = Directory.connect(config.directory)
        self._router = await RouterServer.start(config, _replica_id(), self._directory)

    def check_health(self) -> None:
        """Called by Serve every second; raises when the router must be replaced."""
        self._router.check_health()

    async def __del__(self) -> None:
        """Awaited by Serve before the router ends, also where it never came up."""
        await _end(getattr(self, "_router", None), getattr(self, "_directory", None))


@dataclass(frozen=True, slots=True)
class Share:
    """What each engine replica may use of the machine."""

    threads: int
    gpus: float
    per_device: int

    @classmethod
    def of(cls, replicas: int, cores: int, gpus: int) -> Share:
        """An even share, in fractions that fit: two replicas on one GPU take half each."""
        per_gpu = -(-replicas // gpus) if gpus else 0
        return cls(
            threads=max(1, cores // replicas),
            gpus=1 / per_gpu if per_gpu else 0,
            per_device=per_gpu or replicas,
        )


def build(config: TandemConfig, share: Share) -> serve.Application:
    """The application; `config.directory.url` must be set."""
    if config.directory.url is None:
        raise ConfigError("directory.url is not set")
    environment = _environment(share.threads)
    options = {"num_cpus": 0.1, "num_gpus": share.gpus, "runtime_env": {"env_vars": environment}}
    roles: tuple[tuple[str, ReplicaRole, int], ...] = (
        ("prefill", "prefill", config.prefill.replicas),
        ("decode", config.decode_role, config.decode.replicas),
    )
    pools = [
        _deployment(PoolReplica, name, count, options).bind(config, role, share.per_device)
        for name, role, count in roles
        if count
    ]
    router = _deployment(
        RouterReplica, "router", 1, {"num_cpus": 0.1, "runtime_env": {"env_vars": _environment(1)}}
    )
    # Serve builds one application out of what its ingress is bound to; the router finds the
    # replicas in the directory and makes no use of these handles.
    return router.bind(config, *pools)


def share_of_cluster(config: TandemConfig) -> Share:
    """An even share of the Ray cluster that this process is connected to."""
    resources: Mapping[str, float] = ray.cluster_resources()
    return Share.of(
        config.prefill.replicas + config.decode.replicas,
        cores=os.cpu_count() or 1,
        gpus=int(resources.get("GPU", 0)),
    )


def application(arguments: dict[str, str]) -> serve.Application:
    """Builder for `serve deploy` and RayService: {"config": a YAML file that sets a Redis}."""
    config = load_config(arguments.get("config"))
    return build(config, share_of_cluster(config))


async def _end(served: Any, directory: Directory | None) -> None:
    if served is not None:
        await served.drain(DRAIN_S)
        await served.stop()
    if directory is not None:
        await directory.close()


def _deployment(
    shell: type, name: str, replicas: int, actor_options: dict[str, Any]
) -> serve.Deployment:
    return serve.deployment(
        name=name,
        num_replicas=replicas,
        ray_actor_options=actor_options,
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=DRAIN_S + 5,
        max_constructor_retry_count=2,
        logging_config=QUIET,
    )(shell)


def _environment(threads: int) -> dict[str, str]:
    passed = {key: os.environ[key] for key in ("TANDEM_LOG",) if key in os.environ}
    # A progress bar is no line of a log.
    return passed | dict.fromkeys(_THREADS, str(threads)) | _ALLOCATOR | {"TQDM_DISABLE": "1"}


def _replica_id() -> str:
    context = serve.get_replica_context()
    return f"{context.deployment}#{context.replica_id.unique_id}"


def _host(config: TandemConfig) -> str:
    """Where to listen: a directory on a Unix socket means that all is on this host."""
    local = (config.directory.url or "").startswith("unix:")
    return "127.0.0.1" if local else str(ray.util.get_node_ip_address())
