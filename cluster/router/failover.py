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
from dataclasses import dataclass, field

from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.admission.reassigner import Reassigner
from cluster.api import ChoiceSummary
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaRecord
from cluster.router.choice_stream import ChoiceHooks, ChoiceMoved, ChoiceStream, Emit
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
# Bound: the longest wait of a lost choice that all replicas refused.
_MOST_PAUSE_S = 1.0


@dataclass(slots=True)
class _Losses:
    """The losses of a choice, when the last was (monotonic), and who refused the choice since."""

    count: int = 0
    last_s: float = 0.0
    refused: set[str] = field(default_factory=set)
    pause_s: float = POLL_S


@dataclass(frozen=True, slots=True, eq=False)
class _Resumed:
    """A choice that failed over after its first token, and its present stream."""

    state: ResumeState
    assignment: Assignment
    stream: ChoiceStream


class Failover:
    """Runs assigned choices to their end, from replica to replica where one is lost on the way.

    A choice waits for other replicas for `timeout_s`; with 0 it fails instead. `suspect` is told of
    lost replicas.
    """

    def __init__(
        self,
        reassigner: Reassigner,
        streams: CallStreams,
        suspect: Callable[[ReplicaRecord], None],
        timeout_s: float,
    ) -> None:
        self._reassigner = reassigner
        self._streams = streams
        self._suspect = suspect
        self._timeout_s = timeout_s
        # Some of these still stand still.
        self._resumed: set[_Resumed] = set()

    async def run(
        self,
        state: ResumeState,
        assignment: Assignment,
        emit: Emit,
        computed: Callable[[FirstTokenTiming], None],
    ) -> ChoiceSummary:
        """Stream a choice to its end; raises a TandemError. A failover changes the assignment."""
        # A choice that another router had has lost its replica once already.
        losses = _Losses(int(assignment.failed_over), time.monotonic())
        while True:
            try:
                return await self._run_once(state, assignment, emit, computed)
            except ChoiceMoved:
                continue
            except (ReplicaLost, TransferFailed) as error:
                losses = _Losses(losses.count + 1, time.monotonic())
                state.times.lost(assignment.plan.pair, losses.last_s)
                cause: TandemError = error
            except Overloaded as error:
                # A refusal by a full replica ends the choice, unless a replica was lost before.
                if not losses.count or time.monotonic() >= losses.last_s + self._timeout_s:
                    raise
                losses.refused.add(assignment.plan.pair.decode.id)
                state.times.retries += 1
                cause = error
            assignment.release_load()
            if losses.count > MOST_LOSSES or not self._timeout_s:
                raise cause
            await self._reassign(state, assignment, cause, losses)

    def hasten(self) -> None:
        """Let streams that stand still go on sooner elsewhere, such as on a fresh replica.

        The longest go first, because replicas compute them last.
        """
        waiting = [one for one in self._resumed if one.stream.stands_still]
        for one in sorted(waiting, key=lambda one: -len(one.state.output)):
            request = one.state.placement_request(one.assignment.request)
            try:
                moved = self._reassigner.hasten(one.assignment, request)
            except (Unavailable, PromptTooLong):
                continue
            if moved:
                where = {"decode": one.assignment.plan.pair.decode.id}
                log.info("stream goes on sooner elsewhere", extra=one.state.named_in_log | where)
                one.stream.move()

    async def _run_once(
        self,
        state: ResumeState,
        assignment: Assignment,
        emit: Emit,
        computed: Callable[[FirstTokenTiming], None],
    ) -> ChoiceSummary:
        stream = self._stream(state, assignment, emit, computed)
        resumed = _Resumed(state, assignment, stream)
        if state.output:
            self._resumed.add(resumed)
        try:
            return await stream.run()
        finally:
            self._resumed.discard(resumed)

    async def adopt(self, state: ResumeState, first: PlacementRequest) -> Assignment:
        """Assign a choice that another router had; `first` are its needs before any token.

        Waits for replicas as a lost choice does. Raises Unavailable and PromptTooLong.
        """
        until_s = time.monotonic() + self._timeout_s
        request, streaming = state.placement_request(first), bool(state.output)
        while True:
            try:
                return self._reassigner.adopt(request, streaming=streaming)
            except Unavailable:
                if time.monotonic() >= until_s:
                    raise
            await asyncio.sleep(POLL_S)

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
        self, state: ResumeState, assignment: Assignment, cause: TandemError, losses: _Losses
    ) -> None:
        """Assign the choice to other replicas once there are any; raises the cause if too late.

        A replica that refused the choice is asked again after all others, and after a pause.
        """
        request, sent = state.placement_request(assignment.request), len(state.output)
        if isinstance(cause, Overloaded) and not sent:
            await self._pause(losses)
        while True:
            try:
                self._reassigner.reassign(
                    assignment, request, streaming=sent > 0, without=losses.refused
                )
                break
            except (Unavailable, PromptTooLong):
                if time.monotonic() >= losses.last_s + self._timeout_s:
                    raise cause from None
            await self._pause(losses)
        pair, reason = assignment.plan.pair, type(cause).__name__
        # A refusal by a full replica during a failover does not count as another loss.
        if not isinstance(cause, Overloaded):
            metrics.FAILOVERS.inc(reason=reason)
        where = {"prefill": pair.prefill.id, "decode": pair.decode.id}
        why = {"error": reason, "reason": cause.message, "sent": sent}
        why["waited_s"] = time.monotonic() - losses.last_s
        log.warning("request failed over", extra=state.named_in_log | where | why)

    async def _pause(self, losses: _Losses) -> None:
        """Wait for other replicas, or for room; longer each time that all replicas refused."""
        await asyncio.sleep(losses.pause_s)
        if losses.refused:
            losses.refused.clear()
            losses.pause_s = min(_MOST_PAUSE_S, 2 * losses.pause_s)
