"""A router process: the router, its doors, and its view of the directory."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import get_args

from cluster.api import ModelCard
from cluster.autoscaling.load_signals import LoadLimits
from cluster.autoscaling.runner import AutoscalingRunner, Wake
from cluster.config.schema import TandemConfig
from cluster.config.version import config_version
from cluster.discovery.cold_start import ColdStarts
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.heartbeat import DirectoryWatch, LeaseHeartbeat, join_directory
from cluster.discovery.redis_directory import Directory
from cluster.discovery.version_handover import elsewhere
from cluster.gateway import grpc_server as gateway_grpc
from cluster.gateway import http_app as gateway_http
from cluster.gateway import uvicorn_server as http_server
from cluster.gateway.grpc_server import GrpcServer
from cluster.gateway.uvicorn_server import HttpServer
from cluster.placement.placement import Placement
from cluster.replica_record import Change, ReplicaLoad, ReplicaRecord, ReplicaRole
from cluster.router.admin_service import AdminServicer
from cluster.router.canary_routing import CanaryRouting
from cluster.router.peer_exchange import PeerExchange, router_name
from cluster.router.preprocessor import Preprocessor
from cluster.router.router import Router
from cluster.rpc.load_reports_client import LoadReports
from cluster.sockets import reachable
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.backends import CONTENT_TYPE, PrometheusBackend
from cluster.telemetry.labels import RequestLabels
from cluster.tenants.cap_shares import CapShares
from cluster.tenants.fair_share import FairShare
from cluster.tenants.need import caps_of
from cluster.tenants.redis_keys import SharedKeys, keys_of
from engine import telemetry
from engine.errors import Internal
from engine.kv.prefix_digest import Chain
from engine.model.loading import ModelDescription, describe
from engine.text.tokenizer import Tokenizer
from engine.types.lane_quota import most_of
from protos import router_pb2_grpc

log = logging.getLogger(__name__)

_ADMIN = "tandem.internal.v1.Admin"
_TURN_LOOK_S = 0.1
# What HTTP has to write its last answers.
_LEAST_GRACE_S = 1.0


class RouterServer:
    """Serves gRPC and HTTP on the configured ports; `*_address` is where others reach them."""

    def __init__(
        self,
        config: TandemConfig,
        router_id: str,
        directory: Directory,
        identity: str,
        node: str | None = None,
        wake: Wake | None = None,
    ) -> None:
        self.id = router_id
        self.http_address = ""
        self.grpc_address = ""
        self._config = config
        self._wake = wake
        self._identity = identity
        self._node = node
        self._directory = directory
        self._keys = keys_of(config.router.api_keys, directory)
        self._metrics = PrometheusBackend()
        self._watch = DirectoryWatch(directory, on_change=self._membership_changed)
        self._placement = Placement(
            config.local_prefill_tokens,
            config.decode.max_batch,
            overcommit=config.router.kv_overcommit,
            batch_slots=config.decode.batching == "continuous",
            batch_prompts=most_of(config.prefill.max_waiting, batch=True),
        )
        self._reports = LoadReports(self._heard, self._placement.load_tracker.unreport)
        starts = ColdStarts(config.sleepers, config.scaling.start_s)
        self._pools = HealthyReplicas(
            self._watch, reports=self._reports, identity=identity, starts=starts
        )
        self._generation = time.time_ns()
        name = router_name(router_id, self._generation)
        shares = CapShares(name, caps_of(config.tenants))
        self._fairness = FairShare(config.tenants, shares)
        self._canaries = CanaryRouting(config.endpoints, config_version(config))
        self._exchange = PeerExchange(directory, name, shares, self._fairness, self._canaries)
        self._router: Router | None = None
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None
        self._heartbeat: LeaseHeartbeat | None = None
        self._tidying: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        config: TandemConfig,
        router_id: str,
        directory: Directory,
        node: str | None = None,
        wake: Wake | None = None,
    ) -> RouterServer:
        """Read the model's card and tokenizer, watch the directory, open the doors.

        `node` is this host's address to others, for a router that listens on all of its addresses;
        `wake` has a pool that sleeps get a replica.
        """
        description, tokenizer = await asyncio.to_thread(_load, config)
        server = cls(config, router_id, directory, description.identity, node, wake)
        telemetry.install(server._metrics)
        await server._watch.start()
        server._reports.follow(server._pools.members())
        server._router = server._new_router(description, tokenizer)
        await server._take_turn()
        await server._exchange.start()
        if isinstance(server._keys, SharedKeys):
            await server._keys.start()
        await server._open_doors(server._router)
        await server._register()
        server._keep_pools()
        log.info(
            "router ready",
            extra={"replica": router_id, "grpc": server.grpc_address, "http": server.http_address},
        )
        return server

    def check_health(self) -> None:
        """Raise Internal if the doors are not open."""
        if self._grpc is None or self._http is None:
            raise Internal("the router has no open doors")
        if self._heartbeat is not None and not self._heartbeat.running:
            raise Internal("the heartbeat ended")

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let running requests end, leave the directory. Idempotent.

        In this order: replicas that leave at the same time stay while a router needs them.
        """
        grpc_server, self._grpc = self._grpc, None
        http, self._http = self._http, None
        if self._keeping is not None:
            self._keeping.cancel()
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            await heartbeat.leave()
        doors = [grpc_server.stop(timeout_s)] if grpc_server is not None else []
        if http is not None:
            doors.append(http.stop(max(timeout_s, _LEAST_GRACE_S)))
        await asyncio.gather(*doors)
        if heartbeat is not None:
            await heartbeat.stop()

    async def stop(self) -> None:
        """End everything that this router started. Idempotent."""
        await self.drain(0)
        if self._router is not None:
            await self._router.close()
        await self._exchange.stop()
        if isinstance(self._keys, SharedKeys):
            await self._keys.stop()
        await self._watch.stop()
        await self._reports.close()
        telemetry.uninstall(self._metrics)

    def _keep_pools(self) -> None:
        scaling = self._config.scaling
        if scaling.active:
            limits = LoadLimits(
                scaling.queue_s,
                scaling.in_use,
                self._config.decode.itl_budget_ms / 1000,
                self._config.router.kv_overcommit,
                scaling.batch,
            )
            keeper = AutoscalingRunner(
                scaling, limits, self.id, self._pools, self._directory, self._wake
            )
            self._keeping = asyncio.create_task(keeper.run(), name=f"pools by {self.id}")

    def _new_router(self, description: ModelDescription, tokenizer: Tokenizer) -> Router:
        config = self._config
        names = tuple(dict.fromkeys((config.default_endpoint, *config.endpoints)))
        card = ModelCard(
            name=description.name,
            architecture=description.architecture,
            dtype=description.dtype,
            context_tokens=description.context_tokens,
            vocabulary=description.vocabulary,
            endpoints=names,
            created=int(time.time()),
            lanes=tuple(config.endpoints[name].lane for name in names),
        )

        def new_chain(tenant: str) -> Chain:
            return Chain(tenant, description.identity, config.kv.block_size)

        door = Preprocessor(
            card,
            tokenizer,
            config.promised_endpoints,
            config.router.tokenizer_threads,
            new_chain if config.kv.prefix_cache else None,
        )
        labels = RequestLabels(
            config.endpoints, config.default_endpoint, config.tenants, config.router.metric_tenants
        )
        return Router(
            config.router,
            card,
            door,
            self._pools,
            self._placement,
            self._fairness,
            labels,
            self._canaries,
        )

    async def _take_turn(self) -> None:
        """Where other routers serve, open no doors that nobody stands behind."""
        until_s = time.monotonic() + self._config.ray.ready_timeout_s
        while self._pools.missing() and elsewhere(self.id, self._pools.members()):
            if time.monotonic() >= until_s:
                missing = {"replica": self.id, "missing": self._pools.missing()}
                log.warning("the doors open with no replicas behind them", extra=missing)
                return
            await asyncio.sleep(_TURN_LOOK_S)

    async def _open_doors(self, router: Router) -> None:
        config = self._config.router
        admin = AdminServicer(
            self._pools,
            self._directory,
            self._config.least_replicas,
            self._canaries,
            config_version(self._config),
            guarded=config.api_keys is not None,
        )
        self._grpc = await gateway_grpc.start(
            router,
            config.host,
            config.grpc_port,
            max_message_bytes=config.max_message_bytes,
            reuse_port=True,
            keys=self._keys,
            also=[
                (_ADMIN, lambda server: router_pb2_grpc.add_AdminServicer_to_server(admin, server))
            ],
        )
        app = gateway_http.create_app(
            router,
            metrics=lambda: (self._metrics.text(), CONTENT_TYPE),
            max_body_bytes=config.max_message_bytes,
            keys=self._keys,
        )
        self._http = await http_server.start(
            app,
            config.host,
            config.http_port,
            reuse_port=True,
            max_message_bytes=config.max_message_bytes,
            drain=app.state.drain,
        )
        self.grpc_address = reachable(config.host, self._grpc.port, self._node)
        self.http_address = reachable(config.host, self._http.port, self._node)

    async def _register(self) -> None:
        record = ReplicaRecord(
            id=self.id,
            role="router",
            address=self.grpc_address,
            http=self.http_address,
            generation=self._generation,
            model_identity=self._identity,
            config=config_version(self._config),
            started_at=time.time(),
        )
        await join_directory(self._directory, record)
        self._heartbeat = LeaseHeartbeat(
            self._directory, record, self._load, self._config.directory.heartbeat_s
        )
        self._heartbeat.start()

    def _load(self) -> ReplicaLoad:
        """With every beat, so also the gauges are set anew: Ray forgets those that rest."""
        self._show_members()
        if self._router is None:
            return ReplicaLoad()
        self._router.show()
        return self._router.load()

    def _heard(self, replica: str, load: ReplicaLoad) -> None:
        """A replica has said what it is doing."""
        self._placement.load_tracker.report(replica, load, time.monotonic())
        if load.step_s is not None:
            self._placement.costs.learn_step(replica, load.streams, load.step_s)

    def _membership_changed(self, change: Change) -> None:
        self._reports.follow(self._pools.members())
        self._count_members(change)
        if self._router is None or not change.lost:
            return
        task = asyncio.ensure_future(self._router.forget_gone())
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    def _count_members(self, change: Change) -> None:
        for record in change.joined:
            metrics.JOINED.inc(role=record.home or record.role)
        for record in change.lost:
            metrics.LOST.inc(role=record.home or record.role)
        self._show_members()

    def _show_members(self) -> None:
        members = self._watch.members()
        for role in get_args(ReplicaRole):
            metrics.REPLICAS.set(sum((one.home or one.role) == role for one in members), role=role)


def _load(config: TandemConfig) -> tuple[ModelDescription, Tokenizer]:
    description = describe(config.model)
    return description, Tokenizer.load(str(description.folder))
