"""A replica: one process with one engine, one block pool, and both loops.

Its role says which work routers give it, and may change while it runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cluster.config.schema import TandemConfig
from cluster.config.version import config_version
from cluster.discovery.heartbeat import LeaseHeartbeat, join_directory
from cluster.discovery.redis_directory import Directory
from cluster.discovery.version_handover import sent_to_sleep, stay_while_needed, take_turn
from cluster.replica.prefix_warmup import warm
from cluster.replica_record import ReplicaLoad, ReplicaRecord, ReplicaRole
from cluster.rpc.load_reports_server import ReportServicer
from cluster.rpc.role_control import ControlServicer
from cluster.rpc.server import CallServer, Serve, new_server
from cluster.sockets import join
from cluster.telemetry import replica_metrics
from decode_pool.batch_size import BatchSize
from decode_pool.batching import make_batching
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from decode_pool.servicer import DecodeServicer
from engine.errors import Internal
from engine.kv.block_pool import BlockPool
from engine.kv.prefix_digest import digest_of, identity_of
from engine.metrics import PREFIX_EVICTIONS
from engine.model.loading import describe
from engine.runtime.engine import Engine
from engine.runtime.engine_thread import EngineWorker, engine_thread
from engine.scheduling.prompt_order import PromptOrder
from engine.startup_timer import StartupTimer
from engine.text.completion import ChoiceText
from engine.text.tokenizer import Tokenizer
from engine.types.sequence import Sequence
from kv_transfer.config import TransferConfig, frame_bytes_for
from kv_transfer.receiver import KvReceiver
from kv_transfer.sender import KvSender
from kv_transfer.transports.selection import device_name
from prefill_pool.loop import PrefillLoop
from prefill_pool.scheduler import PrefillScheduler
from prefill_pool.servicer import PrefillServicer
from protos import replica_pb2_grpc, report_pb2_grpc

log = logging.getLogger(__name__)

_DRAIN_POLL_S = 0.05
# Routers read the directory every quarter of a second, and an answer may take a second.
_UNSEEN_S = 1.5


class Replica:
    """Starts, registers, answers for its health, drains and stops.

    `address` is where its gRPC server listens.
    """

    def __init__(
        self,
        config: TandemConfig,
        role: ReplicaRole,
        replica_id: str,
        host: str,
        engine: Engine,
        thread: ThreadPoolExecutor,
        tokenizer: Tokenizer,
    ) -> None:
        self.address = ""
        self.id = replica_id
        self.role = role
        self._config = config
        self._host = host
        self._engine = engine
        self._tokenizer = tokenizer
        self._pool = BlockPool(engine.cache.blocks)
        self._identity = identity_of(engine.cache.layout) if config.kv.prefix_cache else None
        self._evictions_told = 0
        self._worker = EngineWorker(engine, thread)
        self._server = new_server()
        self._serves: dict[str, Serve] = {}
        self._calls = CallServer(self._serves)
        self._calls_address = ""
        kv, frame_bytes = config.kv, frame_bytes_for(engine.cache.device.type)
        self._transfer = TransferConfig(kv.transport, frame_bytes, silence_s=kv.silence_s)
        self._prefill: PrefillScheduler | None = None
        self._prefill_loop: PrefillLoop | None = None
        self._warming: asyncio.Task[None] | None = None
        self._decode: DecodeScheduler | None = None
        self._decode_loop: DecodeLoop | None = None
        self._sender: KvSender | None = None
        self._receiver: KvReceiver | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._start_s: dict[str, float] = {}
        self._heartbeat: LeaseHeartbeat | None = None
        self._improving: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        config: TandemConfig,
        role: ReplicaRole,
        replica_id: str,
        host: str,
        directory: Directory,
        share: int = 1,
        stages: StartupTimer | None = None,
    ) -> Replica:
        """Load the model, serve on a free port of `host`, register; raises a TandemError.

        `share` replicas share the memory of this one's device; `stages` has what came before.
        """
        stages = stages or StartupTimer()
        thread = engine_thread()
        loop = asyncio.get_running_loop()
        engine, tokenizer = await loop.run_in_executor(thread, _load, config, share, stages)
        replica = cls(config, role, replica_id, host, engine, thread, tokenizer)
        await replica._serve()
        stages.ended("front_ends")
        replica._improving = asyncio.create_task(replica._improve())
        if engine.is_improved_first:
            await replica._improving
            stages.ended("improvement")
        await replica._register(directory, stages.took)
        replica._warm()
        log.info(
            "replica ready",
            extra={
                "replica": replica_id,
                "role": role,
                "seconds": stages.total_s,
                "stages": str(stages),
            },
        )
        if stages.total_s > (budget_s := config.scaling.start_s):
            told = {"replica": replica_id, "seconds": stages.total_s, "budget_s": budget_s}
            log.warning("start beyond its budget", extra=told | {"longest": stages.longest})
        return replica

    def check_health(self) -> None:
        """Raise Internal if a loop of this replica, or its heartbeat, has ended."""
        for loop in self._loops:
            if loop.done():
                raise Internal(f"{loop.get_name()} ended")
        if self._heartbeat is not None and not self._heartbeat.running:
            raise Internal("the heartbeat ended")

    async def take_role(self, role: ReplicaRole) -> ReplicaRole:
        """Take another role; returns the last one. What runs goes on to its end in either loop.

        Routers know by the next beat, and what they placed before it is served too.
        """
        before, self.role = self.role, role
        if before != role:
            self._report(ReplicaLoad(), before)
            log.info("role changed", extra={"replica": self.id, "role": role, "before": before})
        if self._heartbeat is not None:
            self._heartbeat.set_role(role)
            await self._heartbeat.beat()
        return before

    async def drain(self, timeout_s: float) -> None:
        """Leave the directory, and let the requests in progress end. Idempotent.

        While routers have nobody else it stays there, and routers that have not read the directory
        yet still send some: those are served too.
        """
        until_s = time.monotonic() + timeout_s
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            broken = any(loop.done() for loop in self._loops)
            if timeout_s and not broken and not await sent_to_sleep(heartbeat):
                await stay_while_needed(heartbeat, timeout_s)
            await heartbeat.stop()
            timeout_s = max(0.0, until_s - time.monotonic())
            await asyncio.sleep(min(timeout_s, _UNSEEN_S))
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        # Links and routers' streams stay open, so the server cannot tell when all has ended.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.load().used or not self._calls.idle:  # noqa: ASYNC110 - blocks are freed in many places
                    await asyncio.sleep(_DRAIN_POLL_S)
        await self._calls.stop()
        await self._server.stop(0)

    async def take_turn(self, timeout_s: float) -> None:
        """Wait, where another version serves, until this one is all there: then that may go."""
        if self._heartbeat is not None:
            await take_turn(self._heartbeat, timeout_s)

    async def stop(self) -> None:
        """End everything that this replica started. Idempotent."""
        await self.drain(0)
        for end in (self._sender, self._receiver):
            if end is not None:
                await end.close()
        tasks = [*self._loops, *([self._improving] if self._improving else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker.close()

    def load(self) -> ReplicaLoad:
        """What this replica is doing now, orphans counted; also sets its gauges."""
        schedulers = [s for s in (self._prefill, self._decode) if s is not None]
        owners = frozenset[str]().union(*(s.owners() for s in schedulers))
        load = replace(self.state(), blocks_orphaned=self._pool.orphaned(owners))
        self._report(load, self.role)
        return load

    def state(self) -> ReplicaLoad:
        """What this replica is doing now, cheap enough to ask for many times a second."""
        schedulers = [s for s in (self._prefill, self._decode) if s is not None]
        counts, loop = self._pool.counts(), self._decode_loop
        expected = loop.expected if loop is not None else 0
        return ReplicaLoad(
            waiting=sum(s.waiting for s in schedulers) + expected,
            running=sum(s.running for s in schedulers),
            blocks_total=counts.total,
            blocks_free=counts.free,
            blocks_cached=counts.cached,
            blocks_used=counts.used,
            blocks_leased=counts.leased,
            blocks_quarantined=counts.quarantined,
            block_size=self._config.kv.block_size,
            context_tokens=self._engine.description.context_tokens,
            prompt_tokens_due=sum(s.tokens_due for s in schedulers),
            prompt_tokens_per_s=self._prompt_speed(),
            blocks_promised=self._decode_loop.blocks_promised if self._decode_loop else 0,
            streams=self._decode.streams if self._decode else 0,
            batch_tokens_due=sum(s.batch_tokens_due for s in schedulers),
            batch_blocks=loop.batch_blocks if loop is not None else 0,
            batch_streams=self._decode.batch_streams if self._decode else 0,
            batch_limit=self._decode.batch.limit if self._decode else 0,
            step_s=self._decode_loop.itl.step_s if self._decode_loop else None,
            itl_s=self._decode_loop.itl.itl_s() if self._decode_loop else None,
        )

    async def _serve(self) -> None:
        """Both loops, whatever the role is: it decides what work comes, and may change."""
        prefill, decode = await self._serve_prefill(), self._serve_decode()
        # One may wait for blocks that the other frees.
        prefill.wakeup.join(decode.wakeup)
        control = ControlServicer(self.take_role)
        replica_pb2_grpc.add_ControlServicer_to_server(control, self._server)
        reports = ReportServicer(self.state, prefill.wakeup)
        report_pb2_grpc.add_ReportsServicer_to_server(reports, self._server)
        port = self._server.add_insecure_port(join(self._host, 0))
        await self._server.start()
        self.address = join(self._host, port)
        self._calls_address = await self._calls.start(self._host)

    async def _serve_prefill(self) -> PrefillLoop:
        kv, prefill = self._config.kv, self._config.prefill
        self._prefill = PrefillScheduler(
            self._pool,
            PromptOrder(prefill.chunk_tokens, prefill.lanes),
            block_size=kv.block_size,
            max_waiting=prefill.max_waiting,
            parked_fraction=kv.parked_fraction,
            identity=self._identity,
        )
        loop = self._prefill_loop = PrefillLoop(self._prefill, self._worker)
        self._sender = KvSender(self.id, self._host, self._engine.cache, self._transfer)
        await self._sender.start()
        self._sender.add_to(self._server)
        servicer = PrefillServicer(loop, self._sender, self._new_completion, kv.lease_s)
        self._serves["prefill"] = servicer.serve
        self._run("prefill loop", loop.run())
        return loop

    def _serve_decode(self) -> DecodeLoop:
        kv, prefill, decode = self._config.kv, self._config.prefill, self._config.decode
        budget_s = decode.itl_budget_ms / 1000
        self._decode = DecodeScheduler(
            self._pool,
            PromptOrder(prefill.chunk_tokens, prefill.lanes),
            BatchSize(decode.max_batch, budget_s),
            block_size=kv.block_size,
            max_waiting=decode.max_waiting,
            chunk_tokens=prefill.chunk_tokens,
            identity=self._identity,
            batching=make_batching(decode.batching, decode.window_ms / 1000),
        )
        most_jobs = decode.max_batch + decode.max_waiting
        itl = ItlBudget(budget_s, decode.itl_factor)
        loop = self._decode_loop = DecodeLoop(self._decode, self._worker, most_jobs, itl)
        self._receiver = KvReceiver(self.id, self._host, self._engine.cache, self._transfer)
        timeout_s = self._config.router.request_timeout_s
        servicer = DecodeServicer(loop, self._receiver, self._new_completion, timeout_s)
        self._serves["decode"] = servicer.serve
        self._run("decode loop", loop.run())
        return loop

    async def _improve(self) -> None:
        """Make the engine faster; it goes on as it is where that fails."""
        try:
            await self._worker.improve()
        except Exception:
            log.exception("the engine could not be improved", extra={"replica": self.id})

    def _run(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        self._loops.append(asyncio.create_task(loop, name=f"{name} of {self.id}"))

    async def _register(self, directory: Directory, start_s: Mapping[str, float]) -> None:
        self._start_s = dict(start_s)
        device = self._engine.cache.device
        record = ReplicaRecord(
            id=self.id,
            role=self.role,
            home=self.role,
            address=self.address,
            calls=self._calls_address,
            generation=time.time_ns(),
            model_identity=self._engine.description.identity,
            kv_identity=digest_of(self._engine.cache.layout),
            config=config_version(self._config),
            started_at=time.time(),
            start_s=self._start_s,
            device=self._engine.shared_cores if device.type == "cpu" else device_name(device),
            load=self.load(),
        )
        await join_directory(directory, record)
        self._heartbeat = LeaseHeartbeat(
            directory, record, self.load, self._config.directory.heartbeat_s
        )
        self._heartbeat.start()

    def _warm(self) -> None:
        """In the background, as requests are served already."""
        kv = self._config.kv
        if kv.warm_prefixes and self.role != "decode":
            warming = warm(
                self._compute,
                kv.warm_prefixes,
                self._tokenizer.encode,
                kv.block_size,
                self._engine.description.context_tokens,
            )
            self._warming = asyncio.create_task(warming, name=f"warming of {self.id}")

    async def _compute(self, sequence: Sequence) -> None:
        """Compute a prompt so that its KV is cached here."""
        if self.role == "prefill" and self._prefill_loop is not None:
            await self._prefill_loop.compute(sequence)
        elif self._decode_loop is not None:
            job = DecodeJob(sequence, self._new_completion(sequence), local=True)
            await self._decode_loop.compute(job)

    def _prompt_speed(self) -> float | None:
        scheduler = self._prefill if self.role == "prefill" else self._decode
        return scheduler.order.tokens_per_s if scheduler is not None else None

    def _new_completion(self, sequence: Sequence) -> ChoiceText:
        description = self._engine.description
        return ChoiceText(
            self._tokenizer,
            sequence.tokens[: sequence.prompt_tokens],
            sequence.sampling,
            description.eos_ids,
            description.context_tokens,
        )

    def _report(self, load: ReplicaLoad, role: ReplicaRole) -> None:
        replica_metrics.show(load, role, self.id, self._config.decode.max_batch)
        replica_metrics.show_start(self._start_s, role, self.id)
        pool = "prefill" if role == "prefill" else "decode"
        PREFIX_EVICTIONS.inc(self._pool.evictions - self._evictions_told, pool=pool)
        self._evictions_told = self._pool.evictions


def _load(config: TandemConfig, share: int, stages: StartupTimer) -> tuple[Engine, Tokenizer]:
    """The engine and the tokenizer; blocks for as long as loading takes."""
    description = describe(config.model)
    tokenizer = Tokenizer.load(str(description.folder))
    stages.ended("tokenizer")
    engine = Engine.load(
        description,
        config.kv,
        config.model,
        most_tokens=config.decode.max_batch * description.context_tokens,
        share=share,
        timer=stages,
    )
    return engine, tokenizer
