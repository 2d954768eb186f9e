"""The load of a replica: for routers, for the directory, and for the replica's gauges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cluster.config.schema import TandemConfig
from cluster.replica.assembly import ReplicaParts
from cluster.replica_record import ReplicaLoad, ReplicaRole
from cluster.telemetry import replica_metrics
from engine.metrics import PREFIX_EVICTIONS


class ReplicaStatus:
    """The role of a replica, and its load as it is now.

    `start_s` has the seconds of each stage of the start.
    """

    def __init__(
        self,
        config: TandemConfig,
        parts: ReplicaParts,
        replica_id: str,
        role: ReplicaRole,
        start_s: Mapping[str, float],
    ) -> None:
        self.role = role
        self.start_s = dict(start_s)
        self._config = config
        self._parts = parts
        self._id = replica_id
        self._evictions_counted = 0

    def load(self) -> ReplicaLoad:
        """The load with the orphaned blocks counted; also sets the gauges."""
        prefill, decode = self._parts.prefill.scheduler, self._parts.decode.scheduler
        orphaned = self._parts.blocks.orphaned(prefill.owners() | decode.owners())
        load = replace(self.state(), blocks_orphaned=orphaned)
        self._show(load, self.role)
        return load

    def state(self) -> ReplicaLoad:
        """The load without orphaned blocks, cheap enough for many calls a second."""
        prefill, decode = self._parts.prefill.scheduler, self._parts.decode.scheduler
        counts, loop = self._parts.blocks.counts(), self._parts.decode.loop
        working = prefill if self.role == "prefill" else decode
        passes = working.order.pass_costs
        return ReplicaLoad(
            waiting=prefill.waiting + decode.waiting + loop.expected,
            running=prefill.running + decode.running,
            blocks_total=counts.total,
            blocks_free=counts.free,
            blocks_cached=counts.cached,
            blocks_used=counts.used,
            blocks_leased=counts.leased,
            blocks_quarantined=counts.quarantined,
            block_size=self._config.kv.block_size,
            context_tokens=self._parts.model.engine.description.context_tokens,
            prompt_tokens_due=prefill.tokens_due + decode.tokens_due,
            prompt_tokens_per_s=working.order.tokens_per_s,
            pass_s=passes.timing.pass_s if passes else None,
            pass_token_s=passes.timing.token_s if passes else 0.0,
            shared_tokens=passes.shared_tokens if passes else 0,
            chunk_tokens=passes.chunk_tokens if passes else 0,
            blocks_promised=loop.blocks_promised,
            streams=decode.streams,
            batch_tokens_due=prefill.batch_tokens_due + decode.batch_tokens_due,
            batch_blocks=loop.batch_blocks,
            batch_streams=decode.batch_streams,
            batch_limit=decode.batch.limit,
            step_s=loop.itl.step_s,
            itl_s=loop.itl.itl_s(),
            stalled=self.stalled(),
        )

    def stalled(self) -> bool:
        """Whether the engine stands still, although streams wait for their next tokens.

        A prompt that waits for blocks is no sign of that: another replica may hold them.
        """
        return self._parts.worker.stalled(due=self._parts.decode.scheduler.streams > 0)

    def take_role(self, role: ReplicaRole) -> ReplicaRole:
        """Take another role; returns the role before. The gauges of that role fall to zero."""
        before, self.role = self.role, role
        if before != role:
            self._show(ReplicaLoad(), before)
        return before

    def _show(self, load: ReplicaLoad, role: ReplicaRole) -> None:
        replica_metrics.show(load, role, self._id, self._parts.model.limits.max_batch)
        replica_metrics.show_start(self.start_s, role, self._id)
        pool, evictions = "prefill" if role == "prefill" else "decode", self._parts.blocks.evictions
        PREFIX_EVICTIONS.inc(evictions - self._evictions_counted, pool=pool)
        self._evictions_counted = evictions
