"""The Ray Serve application `tandem`: a deployment per pool and one of routers.

Each is a thin shell around one class. Without prefill replicas there is no prefill deployment.

Serve places the replicas, checks their health, restarts and scales them. Requests do not pass
through it: each replica has a port of its own. On a Ray cluster that
runs already, name `cluster.deploy.serve_app:application` as the import path, with the configuration
file as an argument.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import ray.util.metrics
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import LoggingConfig

from cluster.autoscaling.serve_policy import DESIRED, follow_desired
from cluster.config.autoscaling import PoolBounds
from cluster.config.deployment import RayConfig
from cluster.config.schema import TandemConfig, load_config
from cluster.config.source import await_version
from cluster.deploy.process_environment import SHORT_SPINS, process_environment
from cluster.deploy.resource_share import ResourceShare, even_share, shares_of
from cluster.deploy.serve_ports import bind_to_loopback
from cluster.discovery.redis_directory import Directory
from cluster.replica.end_signal import EndSignal
from cluster.replica.gc_tuning import settle
from cluster.replica.health_file import HealthFile
from cluster.replica.start_report import StartReport
from cluster.replica_record import Pool, ReplicaRole
from cluster.telemetry.backends import RayBackend
from cluster.telemetry.logging_setup import configure_logging
from cluster.tenants.operator_key import digest_from_environment
from engine import telemetry
from engine.errors import ConfigError, Unavailable
from engine.model_description import without_torch
from engine.startup_timer import StartupTimer

log = logging.getLogger(__name__)

APPLICATION = "tandem"
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
# The time between two checks by Serve, which notices a death by a check alone.
_CHECK_POOL_S, _CHECK_ROUTER_S = 1.0, 0.4
# A kubelet updates a mounted ConfigMap about once a minute.
_CONFIG_ARRIVES_S = 180.0
# Bound: how long one call that wakes a pool is pending before it is sent again.
_WAKE_S = 60.0


class PoolReplica:
    """One engine in a Serve replica; registers under Serve's unique id, never the rank."""

    async def __init__(  # type: ignore[misc]
        self, config: TandemConfig, role: ReplicaRole, memory_share: int
    ) -> None:
        stages, name = StartupTimer("import"), _replica_id()
        bind_to_loopback()
        configure_logging(replica=name)
        self._directory = Directory.of(config)
        self._pool: Pool = "prefill" if role == "prefill" else "decode"
        async with StartReport(stages, self._directory, name, self._pool):
            from cluster.replica.replica import Replica

            telemetry.install(RayBackend(ray.util.metrics))
            self._drain_s = config.ray.drain_s
            self._health = HealthFile.from_environment(name)
            self._replica = await Replica.start(
                config, role, name, _host(config), self._directory, memory_share, stages
            )
        self._end_signal = EndSignal()
        await self._replica.wait_for_version(config.ray.ready_timeout_s)
        settle()

    def check_health(self) -> None:
        """Called by Serve every second; raises when the replica must be replaced."""
        self._end_signal.check()
        self._replica.check_health()
        self._health.touch()

    def wake(self) -> None:
        """Called by a router while there is no replica, so that Serve starts one."""

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Record for Serve how many replicas a pool that scales should have."""
        try:
            desired = await self._directory.desired()
        except Unavailable:
            return {}
        return {DESIRED: desired[self._pool]} if self._pool in desired else {}

    async def __del__(self) -> None:
        """Awaited by Serve before the replica ends, also where it never came up."""
        await _end(self, getattr(self, "_replica", None))


class RouterReplica:
    """One router in a Serve replica."""

    async def __init__(  # type: ignore[misc]
        self,
        config: TandemConfig,
        operator_digest: str | None,
        *pools: serve.handle.DeploymentHandle,
    ) -> None:
        stages = StartupTimer("import")
        without_torch()
        from cluster.router.server import RouterServer

        bind_to_loopback()
        configure_logging(replica=_replica_id())
        telemetry.install(RayBackend(ray.util.metrics))
        self._drain_s = config.ray.drain_s
        self._health = HealthFile.from_environment(_replica_id())
        self._directory = Directory.of(config)
        self._handles = {handle.deployment_name: handle for handle in pools}
        self._calls: dict[str, Any] = {}
        operators = {one for one in (operator_digest, digest_from_environment()) if one}
        self._router = await RouterServer.start(
            config, _replica_id(), self._directory, _host(config), self._wake, operators, stages
        )
        self._end_signal = EndSignal()
        settle()

    def _wake(self, pool: Pool) -> None:
        """Wake a pool: Serve starts a first replica for a request that waits in a handle."""
        call = self._calls.get(pool)
        if pool in self._handles and (call is None or call.done()):
            self._calls[pool] = asyncio.ensure_future(_woken(self._handles[pool]))

    def check_health(self) -> None:
        """Called by Serve often; raises when the router must be replaced."""
        self._end_signal.check()
        self._router.check_health()
        self._health.touch()

    async def __del__(self) -> None:
        """Awaited by Serve before the router ends, also where it never came up."""
        replaced = hasattr(self, "_end_signal") and self._end_signal.received
        await _end(self, getattr(self, "_router", None), replaced=replaced)


async def _woken(handle: serve.handle.DeploymentHandle) -> None:
    """Send an empty call to a deployment, which is answered when it has a replica."""
    try:
        async with asyncio.timeout(_WAKE_S):
            await handle.wake.remote()
    # The pool is woken again while a request waits for it.
    except Exception as error:
        named = {"deployment": handle.deployment_name, "reason": repr(error)}
        log.warning("a pool could not be woken", extra=named)


def build(
    config: TandemConfig, share: ResourceShare, operator_digest: str | None = None
) -> serve.Application:
    """The application; `directory.url` and `security.secret_file` of `config` must be set.

    `share` is for the prefill and decode replicas without a section in `config.ray.shares`.
    `operator_digest` is the hash of the operator's key of `tandem serve`.
    """
    if config.directory.url is None:
        raise ConfigError("directory.url is not set")
    if config.security.secret_file is None:
        raise ConfigError("security.secret_file is not set; `tandem secret FILE` makes a file")
    shares = shares_of(config, share)
    roles: tuple[tuple[Pool, ReplicaRole], ...] = (
        ("prefill", "prefill"),
        ("decode", config.decode_role),
    )
    pools = [
        _deployment(
            PoolReplica,
            name,
            _replicas(count, config.scaling.bounds.get(name)),
            _actor_options(shares[name], SHORT_SPINS if role == "prefill" else {}),
            config.ray,
            _CHECK_POOL_S,
        ).bind(config, role, shares[name].per_device)
        for name, role in roles
        if (count := config.replicas[name])
    ]
    router = _deployment(
        RouterReplica,
        "router",
        _replicas(config.router.replicas, None),
        _actor_options(shares["router"]),
        config.ray,
        _CHECK_ROUTER_S,
    )
    # Serve builds one application out of what its ingress is bound to; the router finds the
    # replicas in the directory, and uses these handles to wake a pool that sleeps.
    return router.bind(config, operator_digest, *pools)


def share_of_cluster(config: TandemConfig) -> ResourceShare:
    """An even share of the Ray cluster that this process is connected to."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    return even_share(config, os.cpu_count() or 1, gpus)


def application(arguments: Mapping[str, Any]) -> serve.Application:
    """Builder for `serve deploy` and RayService: the application that `tandem serve` runs.

    `arguments` has `config`, a YAML file on every node, and `overrides`, dotted key → value, which
    beat the file as the flags of `tandem serve` do. They must name a Redis and a secret. With a
    `checksum` of the file (SHA-256) the builder waits for that version of it.
    """
    if unknown := set(arguments) - {"config", "overrides", "checksum"}:
        raise ConfigError(f"unknown argument of the application: {', '.join(sorted(unknown))}")
    if (checksum := arguments.get("checksum")) is not None:
        if "config" not in arguments:
            raise ConfigError("the application has a checksum, and no config that it is of")
        await_version(Path(arguments["config"]), checksum, _CONFIG_ARRIVES_S)
    config = load_config(arguments.get("config"), arguments.get("overrides"))
    return build(config, share_of_cluster(config))


async def _end(shell: Any, served: Any, **how: bool) -> None:
    """Drain and stop the server of a Serve replica, if its start came that far."""
    if served is not None:
        await served.drain(shell._drain_s, **how)
        await served.stop()
    if (health := getattr(shell, "_health", None)) is not None:
        health.remove()
    if (directory := getattr(shell, "_directory", None)) is not None:
        await directory.close()


def _actor_options(share: ResourceShare, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "num_cpus": 0.1,
        "runtime_env": {"env_vars": process_environment(share.threads) | dict(more or {})},
    }
    if share.gpus:
        options["num_gpus"] = share.gpus
    if share.resources:
        options["resources"] = dict(share.resources)
    return options


def _replicas(count: int, bounds: PoolBounds | None) -> dict[str, Any]:
    """Serve's options for how many replicas there are; the hysteresis is the controller's."""
    if bounds is None:
        return {"num_replicas": count}
    scaling = AutoscalingConfig(
        min_replicas=bounds.min,
        initial_replicas=count,
        max_replicas=bounds.max,
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        policy=AutoscalingPolicy(policy_function=follow_desired),
    )
    return {"autoscaling_config": scaling}


def _deployment(
    shell: type,
    name: str,
    replicas: dict[str, Any],
    actor_options: dict[str, Any],
    ray_config: RayConfig,
    check_s: float,
) -> serve.Deployment:
    return serve.deployment(
        name=name,
        **replicas,
        ray_actor_options=actor_options,
        health_check_period_s=check_s,
        health_check_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=ray_config.drain_s + 5,
        max_surge_percent=ray_config.surge_percent,
        max_constructor_retry_count=2,
        logging_config=QUIET,
    )(shell)


def _replica_id() -> str:
    context = serve.get_replica_context()
    return f"{context.deployment}#{context.replica_id.unique_id}"


def _host(config: TandemConfig) -> str:
    """This host's address for other hosts; 127.0.0.1 if the directory is on a Unix socket."""
    local = (config.directory.url or "").startswith("unix:")
    return "127.0.0.1" if local else str(ray.util.get_node_ip_address())
