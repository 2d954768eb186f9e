"""`tandem serve`: from a configuration to a cluster that answers, and back to nothing.

    check → directory → ray → serve → replicas → one demo answer → stay → stop

The launcher ends all processes that it starts. After a kill -9 the kernel ends redis-server and
Ray's servers, and their workers follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cluster.client.admin_client import fetch_status
from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig
from cluster.deploy.child_processes import adopt_orphans, end_descendants
from cluster.deploy.demo_answer import answer_demo
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.deploy.local_ray.folder import RayFolder
from cluster.deploy.local_ray.settings import local_environment, set_environment
from cluster.deploy.orphan_guard import OrphanGuard
from cluster.deploy.reserved_ports import Ports, router_command
from cluster.deploy.served_model import pools_of, with_model_here
from cluster.deploy.signals import ENDING_SIGNALS, listen_to_signals, signals_delayed
from cluster.deploy.start_checks import check_files
from cluster.deploy.startup_progress import StartupProgress
from cluster.deploy.stop_request import stop_requested
from cluster.discovery.redis_directory import Directory
from cluster.discovery.request_seal import RequestSeal
from cluster.discovery.rollout import Rollouts
from cluster.discovery.starting_replicas import StartWatch
from cluster.locked_folder import LockedFolder
from cluster.replica_record import ReplicaRecord
from cluster.rpc.membership import Membership
from cluster.sockets import join, reachable
from cluster.tenants.operator_key import VARIABLE, OperatorKey
from engine.errors import ConfigError, TandemError, Unavailable
from protos.wire.certificates import server_certificate
from protos.wire.secret import made
from tandem_client.router_address import RouterAddress

if TYPE_CHECKING:
    from cluster.deploy.ray_cluster import RayCluster

_STOP_INTERVAL_S = 0.5
_POOLS_TIMEOUT_S = 15.0
_LEFTOVER_GRACE_S = 2.0
logger = logging.getLogger(__name__)


class Launcher:
    """One run of `tandem serve`."""

    def __init__(self, config: TandemConfig, out: TextIO = sys.stdout) -> None:
        config = with_model_here(config)
        self._local = config.ray.address is None
        check_files(config)
        self._ports = Ports()
        self._config = config
        self._out = out
        self._progress = StartupProgress(out)
        self._found: ReplicaRecord | None = None
        self._secret: LockedFolder | None = None
        self._redis: EmbeddedRedis | None = None
        self._ray: RayCluster | None = None
        self._folder: RayFolder | None = None
        self._guard: OrphanGuard | None = None
        self._operator_key = OperatorKey()

    @property
    def grpc_address(self) -> str:
        """The router's gRPC address for clients on this machine."""
        if self._found is not None:
            return self._found.address
        return reachable(self._config.router.host, self._config.router.grpc_port)

    @property
    def http_address(self) -> str:
        """The router's HTTP address for clients on this machine."""
        if self._found is not None:
            return self._found.http
        return reachable(self._config.router.host, self._config.router.http_port)

    @property
    def _own_router(self) -> RouterAddress:
        """The router's gRPC address; over TLS, it must show the configured certificate."""
        certificate = self._config.tls.front_ends
        if certificate is None:
            return RouterAddress(self.grpc_address)
        own = server_certificate(certificate.identity)
        return RouterAddress(self.grpc_address, own.chain, own.name)

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM, SIGHUP or a stop request; raises a TandemError."""
        if self._local:
            self._config = self._ports.settle(self._config)
        adopt_orphans()
        try:
            listen_to_signals()
            self._guard = OrphanGuard()
            if self._local:
                router = self._config.router
                self._keep_operator_key(join(router.host, router.grpc_port))
            self._start()
            # asyncio replaces a KeyboardInterrupt that ends a task by one of exactly this class.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            asyncio.run(self._stay())
        except KeyboardInterrupt:
            self._progress.say()
        finally:
            self.stop()
        if self._folder is not None and self._ray is not None:
            self._folder.remove(self._ray.session)

    def _start(self) -> None:
        config = self._config
        self._progress.say(f"tandem: serving {config.model.path}")
        self._progress.say(f"        with {pools_of(config)}")
        if config.security.secret_file is None:
            self._secret = LockedFolder.make("tandem-secret-")
            secret = made(self._secret.path / "secret")
            config = replace(config, security=SecurityConfig(str(secret)))
        if config.directory.url is None:
            self._redis = EmbeddedRedis.start()
            config = replace(config, directory=replace(config.directory, url=self._redis.url))
        self._config = config
        asyncio.run(self._clear_directory())
        self._progress.stage("directory")
        if self._local:
            self._folder = RayFolder.open()
            variables = local_environment(
                self._folder.path,
                self._folder.gcs,
                self._config.ray.drain_s,
                open_metrics=self._config.router.api_keys is None,
            )
            set_environment(variables)
        with self._progress.doing("ray"):
            with signals_delayed():  # where Cython imports, a KeyboardInterrupt is lost
                from cluster.deploy.ray_cluster import RayCluster

            self._ray = RayCluster(self._config, self._progress, self._operator_key.digest)
            try:
                self._ray.start()
            except SystemExit:  # by Ray's handler of SIGTERM, which is there while ray.init runs
                raise KeyboardInterrupt from None
        listen_to_signals()
        with self._progress.doing("serve"):
            self._ray.start_serve()
        with (
            StartWatch(Directory.of(self._config)) as watch,
            self._progress.following(watch.look),
        ):
            self._ray.deploy()

    async def _clear_directory(self) -> None:
        async with self._directory() as directory:
            await directory.clear_stop()

    async def _stay(self) -> None:
        if not self._local:
            await self.find_router()
            self._keep_operator_key(self.grpc_address)
        await self._pools_ready()
        self._show_addresses()
        await answer_demo(self._own_router, self._out, self._progress)
        stop = router_command("stop", str(self._own_router))
        self._progress.say(f"\nready; stop with Ctrl-C or `{stop}`")
        seal = RequestSeal(Membership.of(self._config).secret, secrets.token_hex(16))
        async with self._directory() as directory, asyncio.TaskGroup() as group:
            rolling = group.create_task(self._roll_out(directory, seal))
            gone: Unavailable | None = None
            while gone is None and not await stop_requested(directory, self._redis, seal):
                await asyncio.sleep(_STOP_INTERVAL_S)
                gone = self._ray_lost()
            rolling.cancel()
        if gone is not None:
            await self._requests_ended()
            raise gone
        self._progress.say("stop requested")

    def _ray_lost(self) -> Unavailable | None:
        """Why Ray is lost for good; a GCS that died is started anew first."""
        assert self._ray is not None
        try:
            self._ray.keep()
        except Unavailable as error:
            self._progress.say(f"{error.message}: this cluster ends after its running requests")
            return error
        return None

    async def _requests_ended(self) -> None:
        """Wait until no request runs, for `ray.drain_s` at most. Replicas live on without Ray."""
        for _ in range(round(self._config.ray.drain_s / _STOP_INTERVAL_S)):
            if not await self._is_busy():
                return
            await asyncio.sleep(_STOP_INTERVAL_S)

    async def _is_busy(self) -> bool:
        """Whether requests run or wait, as far as a router tells."""
        try:
            status = await fetch_status(self._own_router, self._operator_key.key)
        except TandemError:
            return True
        return any(one.running or one.waiting for one in status.replicas)

    async def _roll_out(self, directory: Directory, seal: RequestSeal) -> None:
        """Roll out another configuration whenever it is asked for."""
        assert self._ray is not None
        rollouts = Rollouts(self._config, self._ray, with_model_here, self._progress.say, seal)
        while True:
            await asyncio.sleep(_STOP_INTERVAL_S)
            try:
                await rollouts.poll(directory)
            except Unavailable:
                pass  # an outage of the directory is ridden out
            except Exception:
                logger.exception("a rollout ended in a fault")

    async def find_router(self) -> None:
        """Take the addresses of the router from its record in the directory.

        In a cluster of several hosts the router may run on another host, on ports of its choice.
        """
        async with self._directory() as directory:
            routers = [one for one in await directory.members() if one.role == "router"]
        if routers:
            self._found = max(routers, key=lambda record: record.started_at)

    def _keep_operator_key(self, address: str) -> None:
        """Store the key for the commands of this user; without it they need the environment's."""
        try:
            self._operator_key.write(address)
        except ConfigError as error:
            self._progress.say(f"`tandem status` needs {VARIABLE} here: {error.message}")

    async def _pools_ready(self) -> None:
        """Wait until the router sees all pools; it follows the directory with a short delay."""
        deadline, key = time.monotonic() + _POOLS_TIMEOUT_S, self._operator_key.key
        while missing := (await fetch_status(self._own_router, key)).missing:
            if time.monotonic() > deadline:
                raise Unavailable(f"the router does not see a replica of {', '.join(missing)}")
            await asyncio.sleep(0.1)

    def _show_addresses(self) -> None:
        ray, say = self._config.ray, self._progress.say
        scheme = "http" if self._config.tls.front_ends is None else "https"
        say(f"\n  gRPC           {self._own_router}")
        say(f"  HTTP           {scheme}://{self.http_address}/v1")
        say(f"  Console        {scheme}://{self.http_address}/console")
        if self._local:
            dashboard = reachable(ray.dashboard_host, ray.dashboard_port)
            ray_command = Path(sys.executable).with_name("ray")
            say(f"  Ray dashboard  http://{dashboard}")
            say(f"  its token      {ray_command} get-auth-token")

    def stop(self) -> None:
        """End everything that was started. A second signal ends the draining at once."""
        signal.alarm(0)  # Ray's handler of fatal signals would abort this process in 3 s
        with contextlib.suppress(KeyboardInterrupt):
            listen_to_signals()
            if self._ray is not None:
                self._progress.say("stopping; another Ctrl-C waits for no running request")
                self._ray.stop()
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if self._ray is not None:
            self._ray.stop()
        if self._redis is not None:
            self._redis.stop()
        if self._guard is not None:
            self._guard.stop()
        end_descendants(_LEFTOVER_GRACE_S)
        if self._folder is not None:
            self._folder.close()
        if self._secret is not None:
            self._secret.remove()
        self._ports.release()
        self._operator_key.remove()

    @contextlib.asynccontextmanager
    async def _directory(self) -> AsyncIterator[Directory]:
        directory = Directory.of(self._config)
        try:
            yield directory
        finally:
            await directory.close()
