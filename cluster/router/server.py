"""A router process: the router, its front ends, and its view of the directory.

    read the model → watch the directory → wait for a turn → open the front ends → register

Meanwhile it gets its share of the caps, which a dead router holds for a while.
`cluster/router/assembly.py` makes what the router serves with.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import get_args

from cluster.autoscaling.runner import Wake
from cluster.config.schema import TandemConfig
from cluster.config.version import config_version
from cluster.discovery.cold_start import ColdStarts
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.heartbeat import DirectoryWatch, LeaseHeartbeat, join_directory
from cluster.discovery.redis_directory import Directory
from cluster.discovery.version_handover import elsewhere
from cluster.replica_record import Change, ReplicaLoad, ReplicaRecord, ReplicaRole
from cluster.router import assembly
from cluster.router.assembly import ServedModel
from cluster.router.console.access import OperatorAccess
from cluster.router.console.parts import FrontEndKeys, KnownCluster, OwnRouter
from cluster.router.front_ends import FrontEnds
from cluster.router.peer_exchange import PeerExchange
from cluster.router.peers.peer_calls import Peers
from cluster.router.router import Router
from cluster.rpc.load_reports_client import LoadReports
from cluster.rpc.membership import Membership
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.backends import PrometheusBackend
from cluster.tenants.api_keys import ApiKeys
from cluster.tenants.redis_keys import SharedKeys, keys_of
from engine import telemetry
from engine.errors import Internal
from engine.startup_timer import StartupTimer

log = logging.getLogger(__name__)

_POOLS_POLL_S = 0.1
_DRAIN_POLL_S = 0.05


class RouterServer:
    """One router that listens on the configured ports. `RouterServer.start` makes one.

    `router`, `requests`, `pools`, `peers`, `placement` and `fairness` are public, to be observed.
    `node` is this host's address for other hosts, if the router listens on all addresses. `wake`
    starts the first replica of a pool that sleeps. `operators` are hashes of operators' keys
    besides those that `router.api_keys` names.
    """

    def __init__(
        self,
        config: TandemConfig,
        router_id: str,
        directory: Directory,
        model: ServedModel,
        exchange: PeerExchange,
        node: str | None = None,
        wake: Wake | None = None,
        operators: Collection[str] = (),
    ) -> None:
        self.id = router_id
        self._config = config
        self._wake = wake
        self._identity = model.description.identity
        self._node = node
        self._directory = directory
        self._keys = keys_of(config.router.api_keys, directory, operators)
        self._operators = self._keys or ApiKeys({}, operators)
        self._metrics = PrometheusBackend()
        self.watch = DirectoryWatch(directory, on_change=self._membership_changed)
        self.placement = assembly.new_placement(config)
        self._membership = Membership.of(config)
        connector = self._membership.connector()
        self._reports = LoadReports(
            connector,
            self._take_report,
            self.placement.load_tracker.unreport,
            lambda replicas: self.router.silent.tick(replicas),
        )
        starts = ColdStarts(config.sleepers, config.scaling.start_s)
        self.pools = HealthyReplicas(
            self.watch, reports=self._reports, identity=self._identity, starts=starts
        )
        self._exchange = exchange
        self.fairness = exchange.fairness
        preprocessor = assembly.new_preprocessor(config, model)
        accounting = assembly.new_accounting(config, router_id, exchange.canaries, preprocessor)
        self.requests = accounting.log
        self.router = Router(
            config.router,
            preprocessor,
            self.pools,
            self.placement,
            self.fairness,
            accounting,
            connector,
            assembly.new_journal(config, exchange.router, self._identity),
        )
        self.requests.store.running = self.router.in_flight.rows
        self.peers = self.router.stops.peers = Peers(router_id, self.pools.members, connector)
        self._front_ends: FrontEnds | None = None
        self._heartbeat: LeaseHeartbeat | None = None
        self._autoscaling: set[asyncio.Task[None]] = set()
        self._tidying: set[asyncio.Task[None]] = set()
        self._lag: asyncio.Task[None] | None = None
        self.grpc_address = self.http_address = self.peer_address = ""

    @classmethod
    async def start(
        cls,
        config: TandemConfig,
        router_id: str,
        directory: Directory,
        node: str | None = None,
        wake: Wake | None = None,
        operators: Collection[str] = (),
        timer: StartupTimer | None = None,
    ) -> RouterServer:
        """Read the model's card and tokenizer, watch the directory, open the front ends.

        `timer` has the stages that came before.
        """
        timer = timer or StartupTimer()
        exchange = PeerExchange.of(config, directory, router_id)
        sharing = asyncio.create_task(exchange.start(), name=f"share of {router_id}")
        timer.begin("model")
        model = await ServedModel.load(config)
        timer.begin("directory")
        server = cls(config, router_id, directory, model, exchange, node, wake, operators)
        telemetry.install(server._metrics)
        await server.watch.start()
        server._reports.follow(server.pools.members())
        await server._wait_for_pools()
        await sharing
        timer.begin("front_ends")
        if isinstance(server._keys, SharedKeys):
            await server._keys.start()
        await server._open_front_ends()
        timer.end()
        await server._register(timer.took)
        server._start_autoscaling()
        server._lag = asyncio.create_task(server.router.lag.run(), name=f"loop lag of {router_id}")
        where = {"grpc": server.grpc_address, "http": server.http_address}
        log.info("router ready", extra={"replica": router_id, **where, "stages": str(timer)})
        return server

    def check_health(self) -> None:
        """Raise Internal if the front ends are not open, or the heartbeat has ended."""
        if self._front_ends is None:
            raise Internal("the router has no open front ends")
        if self._heartbeat is not None and not self._heartbeat.running:
            raise Internal("the heartbeat ended")

    async def drain(self, timeout_s: float, *, replaced: bool = False) -> None:
        """Take no new requests, let running requests end, leave the directory. Idempotent.

        Where no other router serves, new requests are refused until the running requests have
        ended; a router that is `replaced` serves until another one does. Where one does, the ports
        are left to it at once. The router leaves last, because replicas that leave stay while a
        router needs them.
        """
        until_s = time.monotonic() + timeout_s
        while replaced and time.monotonic() < until_s:
            if elsewhere(self.id, self.pools.members()):
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        front_ends, self._front_ends = self._front_ends, None
        heartbeat, self._heartbeat = self._heartbeat, None
        for task in self._autoscaling:
            task.cancel()
        if heartbeat is not None:
            await heartbeat.leave()
        if front_ends is not None:
            await self._refuse_until_idle(until_s)
            await front_ends.close(max(0.0, until_s - time.monotonic()))
        if heartbeat is not None:
            await heartbeat.stop()

    async def stop(self) -> None:
        """End everything that this router started. Idempotent."""
        await self.drain(0)
        if self._lag is not None:
            self._lag.cancel()
        await self.router.close()
        await self.requests.close()
        await self._exchange.stop()
        if isinstance(self._keys, SharedKeys):
            await self._keys.stop()
        await self.watch.stop()
        await self._reports.close()
        telemetry.uninstall(self._metrics)

    async def _refuse_until_idle(self, until_s: float) -> None:
        """Refuse new requests while requests run, unless another router can serve them."""
        while not elsewhere(self.id, self.pools.members()):
            self.router.refuse_new(until_s - time.monotonic())
            if not self.router.running or time.monotonic() >= until_s:
                return
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _wait_for_pools(self) -> None:
        """Wait for replicas in all pools while another router serves the clients."""
        until_s = time.monotonic() + self._config.ray.ready_timeout_s
        while self.pools.missing() and elsewhere(self.id, self.pools.members()):
            if time.monotonic() >= until_s:
                missing = {"replica": self.id, "missing": self.pools.missing()}
                log.warning("the front ends open with no replicas behind them", extra=missing)
                return
            await asyncio.sleep(_POOLS_POLL_S)

    async def _open_front_ends(self) -> None:
        access = OperatorAccess(
            OwnRouter(self.id, self._config, self.router, self._exchange, self.requests.store),
            KnownCluster(
                *(self.pools, self._directory, self._membership, self._latest),
                *(self.peers, self.placement),
            ),
            FrontEndKeys(self._keys, self._operators),
        )
        front_ends = await FrontEnds.open(access, self._metrics, self._node)
        self.grpc_address, self.http_address = front_ends.grpc_address, front_ends.http_address
        self.peer_address = front_ends.peer_address
        self._front_ends = front_ends

    async def _register(self, start_s: Mapping[str, float]) -> None:
        record = ReplicaRecord(
            id=self.id,
            role="router",
            address=self.grpc_address,
            http=self.http_address,
            peer=self.peer_address,
            generation=self._exchange.generation,
            model_identity=self._identity,
            config=config_version(self._config),
            started_at=time.time(),
            start_s=start_s,
        )
        await join_directory(self._directory, record)
        self._heartbeat = LeaseHeartbeat(
            self._directory, record, self._load, self._config.directory.heartbeat_s
        )
        self._heartbeat.start()

    def _start_autoscaling(self) -> None:
        if not self._config.scaling.active:
            return
        runner = assembly.new_autoscaling(
            self._config, self.id, self.pools, self._directory, self._wake
        )
        self._autoscaling.add(asyncio.create_task(runner.run(), name=f"autoscaling by {self.id}"))

    def _latest(self, record: ReplicaRecord) -> ReplicaRecord:
        """The record with the newest load that is known here."""
        if record.id == self.id:
            return replace(record, load=self.router.load())
        return self.pools.latest(record)

    def _load(self) -> ReplicaLoad:
        """The load for a heartbeat; also sets the gauges, because Ray forgets idle gauges."""
        self._show_members()
        self.router.show()
        return self.router.load()

    def _take_report(self, replica: str, load: ReplicaLoad) -> None:
        self.placement.load_tracker.report(replica, load, time.monotonic())
        self.placement.costs.report(replica, load)

    def _membership_changed(self, change: Change) -> None:
        self._reports.follow(self.pools.members())
        self.router.members_changed()
        self.peers.gone(change.lost)
        for record in change.joined:
            metrics.JOINED.inc(role=record.home or record.role)
        for record in change.lost:
            metrics.LOST.inc(role=record.home or record.role)
        self._show_members()
        if change.lost:
            task = asyncio.ensure_future(self.router.forget_gone())
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)

    def _show_members(self) -> None:
        members = self.watch.members()
        for role in get_args(ReplicaRole):
            metrics.REPLICAS.set(sum((one.home or one.role) == role for one in members), role=role)
