"""A replica: one process with one engine, one block pool, and both loops.

    load → assemble → bind → improve the engine → register → serve → drain → stop

Its role says which work routers give it, and may change while it runs.
`cluster/replica/assembly.py` makes its parts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from cluster.api.event_streams import end
from cluster.config.schema import TandemConfig
from cluster.config.version import config_version
from cluster.discovery.heartbeat import LeaseHeartbeat, join_directory
from cluster.discovery.redis_directory import Directory
from cluster.discovery.version_handover import sent_to_sleep, stay_while_needed, wait_for_version
from cluster.replica.assembly import LoadedModel, ReplicaParts, assemble
from cluster.replica.end_signal import end_this_process
from cluster.replica.link_opening import open_links_ahead
from cluster.replica.prefix_warmup import warm
from cluster.replica.servers import ReplicaServers
from cluster.replica.status import ReplicaStatus
from cluster.replica_record import ReplicaLoad, ReplicaRecord, ReplicaRole
from cluster.rpc.load_reports_server import LoadReporter
from cluster.rpc.membership import Membership
from cluster.rpc.role_control import ControlServer
from decode_pool.job import DecodeJob
from engine.errors import Internal, InvalidRequest, shown
from engine.kv.prefix_digest import digest_of
from engine.startup_timer import StartupTimer
from engine.types.sequence import Sequence
from kv_transfer.transports.selection import device_name

log = logging.getLogger(__name__)

_DRAIN_POLL_S = 0.05
# Routers read the directory every quarter of a second, and an answer may take a second.
_UNSEEN_S = 1.5


class Replica:
    """Serves, answers for its health, drains and stops. `Replica.start` makes one.

    Its parts, its servers and its heartbeat are public, so that a running replica can be observed.
    """

    def __init__(
        self,
        config: TandemConfig,
        parts: ReplicaParts,
        servers: ReplicaServers,
        status: ReplicaStatus,
        heartbeat: LeaseHeartbeat,
        loops: tuple[asyncio.Task[None], ...],
        improvement: asyncio.Task[None],
    ) -> None:
        self.parts = parts
        self.servers = servers
        self.heartbeat = heartbeat
        self._config = config
        self._status = status
        self._loops = loops
        self._improvement = improvement
        self._warmup: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._draining = False

    @classmethod
    async def start(
        cls,
        config: TandemConfig,
        role: ReplicaRole,
        replica_id: str,
        host: str,
        directory: Directory,
        device_share: int = 1,
        timer: StartupTimer | None = None,
    ) -> Replica:
        """Load the model, serve on a free port of `host`, register; raises a TandemError.

        `device_share` replicas share the memory of this replica's device. `timer` has the stages
        that came before.
        """
        timer = timer or StartupTimer()
        membership = Membership.of(config)
        model = await LoadedModel.load(config, device_share, timer)
        timer.begin("front_ends")
        parts = assemble(config, model, replica_id, host, membership.connector())
        parts.prefill.sender.start()
        loops = parts.start_loops(replica_id)
        servers = ReplicaServers.bind(membership, host, parts.serves(config))
        improvement = asyncio.create_task(_improve(parts, replica_id))
        if parts.model.engine.is_improved_first:
            timer.begin("improvement")
            await improvement
        timer.end()
        status = ReplicaStatus(config, parts, replica_id, role, timer.took)
        record = _record(config, parts, servers, status, replica_id)
        beat_s = config.directory.heartbeat_s
        heartbeat = LeaseHeartbeat(directory, record, status.load, beat_s)
        replica = cls(config, parts, servers, status, heartbeat, loops, improvement)
        await replica._open()
        _log_start(replica_id, role, timer, config.scaling.start_s)
        return replica

    @property
    def id(self) -> str:
        """The id under which the replica is registered."""
        return self.heartbeat.record.id

    @property
    def role(self) -> ReplicaRole:
        """The present role of the replica."""
        return self._status.role

    @property
    def address(self) -> str:
        """The host and port on which it listens."""
        return self.servers.address

    def load(self) -> ReplicaLoad:
        """The load of this replica, with orphaned blocks counted; also sets its gauges."""
        return self._status.load()

    def check_health(self) -> None:
        """Raise Internal if the engine, a loop of this replica or its heartbeat does not go on."""
        for loop in self._loops:
            if loop.done():
                raise Internal(f"{loop.get_name()} ended")
        if self._status.stalled():
            limit_s = self._config.model.step_timeout_s
            raise Internal(f"the engine has work and completed no step for {limit_s:g} s")
        if not self._draining and not self.heartbeat.running:
            raise Internal("the heartbeat ended")

    async def take_role(self, role: ReplicaRole) -> ReplicaRole:
        """Take another role; returns the role before. Work in progress goes on to its end.

        Routers read the new role from the directory. Work that they sent before is served too.
        """
        before = self._status.take_role(role)
        if before != role:
            log.info("role changed", extra={"replica": self.id, "role": role, "before": before})
        if not self._draining:
            await self.heartbeat.set_role(role)
        return before

    def purge(self, tenant: str) -> int:
        """Hide the cached blocks of a tenant, and have them overwritten; returns their number.

        Blocks of running requests are overwritten when these requests have ended.
        """
        found = self.parts.blocks.purge(tenant)
        log.info("a tenant's blocks were purged", extra={"replica": self.id, "blocks": found})
        # A round of a loop begins with overwriting.
        self.parts.prefill.loop.wakeup.set()
        return found

    async def wait_for_version(self, timeout_s: float) -> None:
        """Wait, where another version serves, until this version is complete."""
        if not self._draining:
            await wait_for_version(self.heartbeat, timeout_s)

    async def warmed(self) -> None:
        """Wait until the prefixes of `kv.warm_prefixes` are cached."""
        await asyncio.gather(*self._warmup)

    async def drain(self, timeout_s: float) -> None:
        """Leave the directory, and let the requests in progress end. Idempotent.

        The replica stays in the directory while routers have no other. Routers that have not read
        the directory yet still send requests; the replica serves these, too.
        """
        until_s = time.monotonic() + timeout_s
        if not self._draining:
            self._draining = True
            await self._leave(timeout_s)
            timeout_s = max(0.0, until_s - time.monotonic())
            await asyncio.sleep(min(timeout_s, _UNSEEN_S))
        await end([*self._warmup, *self._opening])
        # Links and routers' streams stay open, so the server cannot tell when all has ended.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.load().used or not self.servers.idle:  # noqa: ASYNC110 - blocks are freed in many places
                    await asyncio.sleep(_DRAIN_POLL_S)
            # Nothing is under way, so the links end on purpose, and do not break with the server.
            await self.parts.prefill.sender.close()
        await self.servers.stop()

    def end_process(self, replica: str, at_once: bool) -> None:
        """End this process soon; InvalidRequest where another replica is meant."""
        if replica != self.id:
            raise InvalidRequest(f"this is {self.id}, and not {shown(replica)}", field="replica")
        end_this_process(at_once)

    async def stop(self) -> None:
        """End everything that this replica started. Idempotent."""
        await self.drain(0)
        await self.parts.prefill.sender.close()
        await self.parts.decode.receiver.close()
        await end((*self._loops, self._improvement))
        self.parts.worker.close()

    async def _open(self) -> None:
        """Answer routers and register; then compute the prefixes to be cached, beside requests."""
        prefill = self.parts.prefill.loop
        reporter = LoadReporter(self._status.state, prefill.wakeup, prefill.pass_ends)
        control = ControlServer(self.take_role, self.purge, self.end_process)
        sender = self.parts.prefill.sender
        await self.servers.start(control, reporter, sender)
        await join_directory(self.heartbeat.directory, self.heartbeat.record)
        self.heartbeat.start()
        # Elsewhere a link opens in milliseconds.
        if self.parts.model.engine.cache.device.type == "cuda":
            work = open_links_ahead(self.heartbeat, self.parts.decode.receiver)
            self._opening.add(asyncio.create_task(work, name=f"links of {self.id}"))
        texts = self._config.kv.warm_prefixes
        if texts and self.role != "decode":
            model, block_size = self.parts.model, self._config.kv.block_size
            context_tokens = model.engine.description.context_tokens
            first = warm(self._compute, texts, model.tokenizer.encode, block_size, context_tokens)
            self._warmup.add(asyncio.create_task(first, name=f"prefix warm-up of {self.id}"))

    async def _leave(self, timeout_s: float) -> None:
        broken = any(loop.done() for loop in self._loops)
        if timeout_s and not broken and not await sent_to_sleep(self.heartbeat):
            await stay_while_needed(self.heartbeat, timeout_s)
        await self.heartbeat.stop()

    async def _compute(self, sequence: Sequence) -> None:
        """Compute a prompt so that its KV is cached here."""
        if self.role == "prefill":
            await self.parts.prefill.loop.compute(sequence)
        else:
            text = self.parts.model.new_text(sequence)
            await self.parts.decode.loop.compute(DecodeJob(sequence, text, local=True))


async def _improve(parts: ReplicaParts, replica_id: str) -> None:
    """Make the engine faster; the engine goes on as it is where that fails.

    Forecasts start from the passes that the engine has timed meanwhile.
    """
    try:
        await parts.worker.improve()
    except Exception:
        log.exception("the engine could not be improved", extra={"replica": replica_id})
    if parts.model.engine.pass_timing is not None:
        for scheduler in (parts.prefill.scheduler, parts.decode.scheduler):
            scheduler.order.cost.start_with(parts.model.engine.pass_timing)


def _record(
    config: TandemConfig,
    parts: ReplicaParts,
    servers: ReplicaServers,
    status: ReplicaStatus,
    replica_id: str,
) -> ReplicaRecord:
    engine = parts.model.engine
    device = engine.cache.device
    return ReplicaRecord(
        id=replica_id,
        role=status.role,
        home=status.role,
        address=servers.address,
        generation=time.time_ns(),
        model_identity=engine.description.identity,
        kv_identity=digest_of(engine.cache.layout),
        config=config_version(config),
        started_at=time.time(),
        start_s=status.start_s,
        device=engine.shared_cores if device.type == "cpu" else device_name(device),
        load=status.load(),
    )


def _log_start(replica_id: str, role: ReplicaRole, timer: StartupTimer, budget_s: float) -> None:
    named = {"replica": replica_id, "seconds": timer.total_s}
    log.info("replica ready", extra=named | {"role": role, "stages": str(timer)})
    if timer.total_s > budget_s:
        late = {"budget_s": budget_s, "longest": timer.longest}
        log.warning("start beyond its budget", extra=named | late)
