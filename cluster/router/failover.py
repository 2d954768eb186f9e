"""Failover: a stream continues here after its replica died.

Computing has no side effects, and sent tokens never change. So a choice whose replica died, or
whose KV did not arrive, is assigned to other replicas. It goes on behind the sent tokens.
`cluster/router/resume_state.py` has everything that the next replica needs.

Every wait has an end: a choice survives a few losses, and waits for other replicas for a bounded
time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

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
MOST_LOSSES = 4
POLL_S = 0.1


class Failover:
    """Runs assigned choices to their end, from replica to replica where one is lost on the way.

    A choice waits for other replicas for `timeout_s`; with 0 it fails instead. `suspect` is told of
    lost replicas.
    """

    def __init__(
        self,
        assigner: Assigner,
        streams: CallStreams,
        suspect: Callable[[ReplicaRecord], None],
        timeout_s: float,
    ) -> None:
        self._assigner = assigner
        self._streams = streams
        self._suspect = suspect
        self._timeout_s = timeout_s

    async def run(
        self,
        state: ResumeState,
        assignment: Assignment,
        emit: Emit,
        computed: Callable[[FirstTokenTiming], None],
    ) -> ChoiceSummary:
        """Stream a choice to its end; raises a TandemError. A failover changes the assignment."""
        losses, until_s = 0, 0.0
        while True:
            try:
                return await self._stream(state, assignment, emit, computed).run()
            except (ReplicaLost, TransferFailed) as error:
                losses, until_s = losses + 1, time.monotonic() + self._timeout_s
                cause: TandemError = error
            except Overloaded as error:
                # A refusal by a full replica ends the choice, unless a replica was lost before.
                if not losses or time.monotonic() >= until_s:
                    raise
                cause = error
            assignment.release_load()
            if losses > MOST_LOSSES or not self._timeout_s:
                raise cause
            if isinstance(cause, Overloaded):
                await asyncio.sleep(min(cause.retry_after_s or POLL_S, self._timeout_s))
            await self._reassign(state, assignment, cause, until_s)

    def _stream(
        self,
        state: ResumeState,
        assignment: Assignment,
        emit: Emit,
        computed: Callable[[FirstTokenTiming], None],
    ) -> ChoiceStream:
        state.urgency = assignment.urgency
        pair, prompt = assignment.plan.pair, assignment.shares[0]
        streams = self._streams.to(pair.prefill.address), self._streams.to(pair.decode.address)
        hooks = ChoiceHooks(emit, self._suspect, prompt.release, computed)
        return ChoiceStream(state, pair, streams, hooks)

    async def _reassign(
        self, state: ResumeState, assignment: Assignment, cause: TandemError, until_s: float
    ) -> None:
        """Assign the choice to other replicas once there are any; raises the cause if too late."""
        request, sent = state.placement_request(assignment.request), len(state.output)
        while True:
            try:
                self._assigner.reassign(assignment, request, streaming=sent > 0)
                break
            except (Unavailable, PromptTooLong):
                if time.monotonic() >= until_s:
                    raise cause from None
            await asyncio.sleep(POLL_S)
        pair, reason = assignment.plan.pair, type(cause).__name__
        # A refusal by a full replica during a failover does not count as another loss.
        if not isinstance(cause, Overloaded):
            metrics.FAILOVERS.inc(reason=reason)
        where = {"prefill": pair.prefill.id, "decode": pair.decode.id}
        why = {"error": reason, "reason": cause.message, "sent": sent}
        log.warning("request failed over", extra=state.named_in_log | where | why)
