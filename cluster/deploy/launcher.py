"""`tandem serve`: from a configuration to a cluster that answers, and back to nothing.

    check → directory → ray → serve → replicas → one demo answer → stay → stop

The launcher ends all processes that it starts. After a kill -9 the kernel ends redis-server and
Ray's servers, and their workers follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cluster.api import ChatMessage
from cluster.client.admin_client import fetch_status
from cluster.client.terminal import stream_answer, timing
from cluster.config.router import KEYS_IN_REDIS
from cluster.config.schema import TandemConfig
from cluster.deploy.child_processes import adopt_orphans, end_descendants
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.deploy.local_ray import local_environment
from cluster.deploy.orphan_guard import OrphanGuard
from cluster.deploy.ray_folder import RayFolder
from cluster.deploy.reserved_ports import Ports, stop_command
from cluster.deploy.served_model import pools_of, with_model_here
from cluster.deploy.signals import ENDING_SIGNALS, listen_to_signals, signals_delayed
from cluster.deploy.startup_progress import StartupProgress
from cluster.discovery.redis_directory import Directory
from cluster.discovery.rollout import Rollouts
from cluster.replica_record import ReplicaRecord
from cluster.sockets import join, reachable
from cluster.tenants.hashed_keys import read_keys
from cluster.tenants.operator_key import VARIABLE, OperatorKey
from engine.errors import ConfigError, InvalidRequest, TandemError, Unavailable

if TYPE_CHECKING:
    from cluster.deploy.ray_cluster import RayCluster

DEMO_QUESTION = "What is Tandem?"
_DEMO_TOKENS = 128
_STOP_INTERVAL_S = 0.5
_POOLS_TIMEOUT_S = 15.0
_LEFTOVER_GRACE_S = 2.0
logger = logging.getLogger(__name__)


class Launcher:
    """One run of `tandem serve`."""

    def __init__(self, config: TandemConfig, out: TextIO = sys.stdout) -> None:
        config = with_model_here(config)
        self._local = config.ray.address is None
        if not self._local and config.directory.url is None:
            raise ConfigError("ray.address needs directory.url: a Redis that all nodes reach")
        keys = config.router.api_keys
        if self._local and keys is not None and keys != KEYS_IN_REDIS:
            read_keys(Path(keys))
        self._ports = Ports()
        self._config = config
        self._out = out
        self._progress = StartupProgress(out)
        self._found: ReplicaRecord | None = None
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
        self._progress.say(f"tandem: serving {config.model.path} with {pools_of(config)}")
        if config.directory.url is None:
            self._redis = EmbeddedRedis.start()
            shared = replace(config.directory, url=self._redis.url)
            self._config = replace(config, directory=shared)
        asyncio.run(self._clear_directory())
        self._progress.stage("directory")
        if self._local:
            self._folder = RayFolder.open()
            variables = local_environment(
                self._folder.path, self._folder.gcs, self._config.ray.drain_s
            )
            for key, value in variables.items():
                os.environ.setdefault(key, value)
        with signals_delayed():  # where Cython imports, a KeyboardInterrupt is lost
            from cluster.deploy.ray_cluster import RayCluster

        self._ray = RayCluster(self._config, self._progress, self._operator_key.digest)
        try:
            self._ray.start()
        except SystemExit:  # by Ray's handler of SIGTERM, which is there while ray.init runs
            raise KeyboardInterrupt from None
        listen_to_signals()
        self._ray.start_serve()
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
        await self._demo()
        self._progress.say(f"\nready; stop with Ctrl-C or `{stop_command(self.grpc_address)}`")
        async with self._directory() as directory, asyncio.TaskGroup() as group:
            rolling = group.create_task(self._roll_out(directory))
            gone: Unavailable | None = None
            while gone is None and not await stop_requested(directory, self._redis):
                await asyncio.sleep(_STOP_INTERVAL_S)
                gone = self._gcs_lost()
            rolling.cancel()
        if gone is not None:
            raise gone
        self._progress.say("stop requested")

    def _gcs_lost(self) -> Unavailable | None:
        """Why Ray's GCS is lost for good; a GCS that died is started anew first."""
        assert self._ray is not None
        try:
            self._ray.keep_gcs()
        except Unavailable as error:
            self._progress.say(f"{error.message}: running requests end, and no new ones begin")
            return error
        return None

    async def _roll_out(self, directory: Directory) -> None:
        """Roll out another configuration whenever it is asked for."""
        assert self._ray is not None
        rollouts = Rollouts(self._config, self._ray, with_model_here, self._progress.say)
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
        while missing := (await fetch_status(self.grpc_address, key)).missing:
            if time.monotonic() > deadline:
                raise Unavailable(f"the router does not see a replica of {', '.join(missing)}")
            await asyncio.sleep(0.1)

    def _show_addresses(self) -> None:
        ray, say = self._config.ray, self._progress.say
        say(f"\n  gRPC           {self.grpc_address}")
        say(f"  HTTP           http://{self.http_address}/v1")
        if self._local:
            dashboard = reachable(ray.dashboard_host, ray.dashboard_port)
            ray_command = Path(sys.executable).with_name("ray")
            say(f"  Ray dashboard  http://{dashboard}  (its token: {ray_command} get-auth-token)")

    async def _demo(self) -> None:
        """Answer one question on the terminal; a model that cannot chat continues the text."""
        from cluster.client import Client

        self._progress.say(f"\n> {DEMO_QUESTION}")
        key = os.environ.get("TANDEM_API_KEY")
        async with Client(self.grpc_address, api_key=key) as client:
            prompts = ([ChatMessage("user", DEMO_QUESTION)], DEMO_QUESTION)
            for prompt in prompts:
                try:
                    _, summary = await stream_answer(
                        client, prompt, self._out, max_tokens=_DEMO_TOKENS, temperature=0.0
                    )
                except TandemError as error:
                    if isinstance(error, InvalidRequest) and prompt is not prompts[-1]:
                        continue
                    self._progress.say(f"(no answer: {error.message})")
                    return
                self._progress.say(f"({timing(summary)})")
                return

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
        self._ports.release()
        self._operator_key.remove()

    @contextlib.asynccontextmanager
    async def _directory(self) -> AsyncIterator[Directory]:
        directory = Directory.connect(self._config.directory)
        try:
            yield directory
        finally:
            await directory.close()


async def stop_requested(directory: Directory, redis: EmbeddedRedis | None) -> bool:
    """Whether the cluster's end was asked for. An embedded Redis that died is started anew."""
    if redis is not None and not redis.alive():
        logger.warning("redis-server died and is started anew")
        try:
            await asyncio.to_thread(redis.revive)
        except (TandemError, OSError) as error:
            # Replicas and routers go on without Redis, and the next poll tries again.
            logger.error("redis-server could not be started: %s", error)
            return False
    try:
        return await directory.listen_for_stop()
    except Unavailable:
        return False  # replicas and routers ride an outage out, and so does this
