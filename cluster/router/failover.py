"""Carries a choice to its end, from replica to replica where one is lost on the way.

Computing has no side effects, and what was sent never changes: so a choice whose replica died, or
whose KV did not arrive, is given another place and goes on behind the tokens that were sent. Every
wait has an end: so many losses, and so long without a place to go on at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from cluster.admission.assigner import Assigner
from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.api import ChoiceSummary
from cluster.replica_record import ReplicaRecord
from cluster.router.choice_stream import ChoiceHooks, ChoiceStream, Emit
from cluster.router.resume_state import ResumeState
from cluster.rpc.client_stream import CallStreams
from cluster.telemetry import router_metrics as metrics
from engine.errors import (
    Overloaded,
    PromptTooLong,
    ReplicaLost,
    TandemError,
    TransferFailed,
    Unavailable,
)

log = logging.getLogger(__name__)

# A request that itself brings replicas down must not bring down all of them.
_MOST_LOSSES = 4
_LOOK_S = 0.1


class Failover:
    """Runs placed choices. `patience_s` is how long one waits for another place; 0: not at all.

    `suspect` hears of replicas that were lost.
    """

    def __init__(
        self,
        assigner: Assigner,
        streams: CallStreams,
        suspect: Callable[[ReplicaRecord], None],
        patience_s: float,
    ) -> None:
        self._assigner = assigner
        self._streams = streams
        self._suspect = suspect
        self._patience_s = patience_s

    async def carry(
        self,
        record: ResumeState,
        placed: Assignment,
        emit: Emit,
        computed: Callable[[FirstTokenTiming], None],
    ) -> ChoiceSummary:
        """Stream a choice to its end; raises a TandemError. Its place may be another after it."""
        losses, until_s = 0, 0.0
        while True:
            try:
                return await self._run(record, placed, emit, computed).run()
            except (ReplicaLost, TransferFailed) as error:
                losses, until_s = losses + 1, time.monotonic() + self._patience_s
                cause: TandemError = error
            except Overloaded as error:
                # Where it came in vain at first, that is the answer.
                if not losses or time.monotonic() >= until_s:
                    raise
                cause = error
            placed.release_load()
            if losses > _MOST_LOSSES or not self._patience_s:
                raise cause
            if isinstance(cause, Overloaded):
                await asyncio.sleep(min(cause.retry_after_s or _LOOK_S, self._patience_s))
            await self._move(record, placed, cause, until_s)

    def _run(
        self,
        record: ResumeState,
        placed: Assignment,
        emit: Emit,
        computed: Callable[[FirstTokenTiming], None],
    ) -> ChoiceStream:
        record.prepared = replace(record.prepared, urgency=placed.urgency)
        pair, prompt = placed.plan.pair, placed.shares[0]
        streams = self._streams.to(pair.prefill.calls), self._streams.to(pair.decode.calls)
        hooks = ChoiceHooks(emit, self._suspect, prompt.release, computed)
        return ChoiceStream(record, pair, streams, hooks)

    async def _move(
        self, record: ResumeState, placed: Assignment, cause: TandemError, until_s: float
    ) -> None:
        """Find another place, as soon as there is one; raises the cause where there is none."""
        ask, sent = record.asks(placed.request), len(record.output)
        while True:
            try:
                self._assigner.reassign(placed, ask, streaming=sent > 0)
                break
            except (Unavailable, PromptTooLong):
                if time.monotonic() >= until_s:
                    raise cause from None
            await asyncio.sleep(_LOOK_S)
        pair, reason = placed.plan.pair, type(cause).__name__
        # A full replica on the way is no loss of its own.
        if not isinstance(cause, Overloaded):
            metrics.MOVED.inc(reason=reason)
        where = {"prefill": pair.prefill.id, "decode": pair.decode.id}
        why = {"error": reason, "reason": cause.message, "sent": sent}
        log.warning("request moved", extra=record.named_in_log | where | why)
