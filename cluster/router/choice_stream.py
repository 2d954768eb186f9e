"""One choice of a request on one pair of replicas.

The first token comes from the prefill replica, the others from the decode replica. With local
prefill all tokens come from the decode replica. Each token is checked to be the next one. No task
waits for an event: the streams to the replicas hand events over as they come.

    begun ──▶ first token out ──▶ last token out ──▶ both calls told to end ──▶ both ended
      └── a failure, a cancel: at any point ─────────────────▲
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.admission.assignment import FirstTokenTiming
from cluster.api import ChoiceSummary, Progress, Scored, Tokens
from cluster.api.error_mapping import error_from_failure
from cluster.placement.types import Pair
from cluster.replica_record import ReplicaRecord
from cluster.router.resume_state import ResumeState
from cluster.rpc.client_stream import CallStream, ReplicaCall, Request
from cluster.telemetry import router_metrics as metrics
from engine.errors import Internal, ReplicaLost, TandemError, TransferFailed
from protos import prefill_pb2
from protos.calls_pb2 import CallEvent
from protos.convert import scores_from_proto
from tandem_client.messages import tokens_from_proto
from tandem_client.protos import inference_pb2

log = logging.getLogger(__name__)

Emit = Callable[[Scored | Tokens | Progress], None]
# A broken transfer waits so long for the failure that may have caused it.
_DECISION_S = 0.5


@dataclass(frozen=True, slots=True)
class ChoiceHooks:
    """The functions that a choice calls.

    `emit` gets its events, `lost` a replica that was lost, `computed` the times of its first token.
    `prefilled` is called once the prompt was computed, or never will be.
    """

    emit: Emit
    lost: Callable[[ReplicaRecord], None]
    prefilled: Callable[[], None]
    computed: Callable[[FirstTokenTiming], None]


class _RunningCall:
    """The call to one of the two replicas; its events go to the choice until the call has ended."""

    def __init__(self, choice: ChoiceStream, replica: ReplicaRecord) -> None:
        self.replica = replica
        self.sent_s = time.monotonic()
        self.ended = False
        self._choice = choice
        self._call: ReplicaCall | None = None

    def begin(self, stream: CallStream, request: Request) -> None:
        self._call = stream.begin(request, self._choice.prompt, self)

    def cancel(self) -> None:
        if self._call is not None and not self.ended:
            self._call.cancel()

    def take(self, event: CallEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "ended":
            self._end(error_from_failure(event.ended.failure) if event.ended.failure.kind else None)
        else:
            self._choice.take(self, kind or "", event)

    def lost(self, error: TandemError) -> None:
        if isinstance(error, ReplicaLost):
            replica = self.replica
            what = f"{replica.role} replica {replica.id} was lost: {error.message}"
            error = ReplicaLost(what, retry_after_s=1.0)
        self._end(error)

    def _end(self, error: TandemError | None) -> None:
        self.ended = True
        self._choice.call_ended(self, error)


class ChoiceMoved(Exception):
    """The choice goes on on another replica, although none was lost."""


class ChoiceStream:
    """Drives the two calls of a choice, from where its resume state says that it is.

    Once the choice has begun to stream, all further tokens come from the pair's decode replica.
    """

    def __init__(
        self,
        state: ResumeState,
        pair: Pair,
        streams: tuple[CallStream, CallStream],
        hooks: ChoiceHooks,
    ) -> None:
        self.prompt = state.prepared.prompt
        self._state = state
        self._pair = pair
        self._streams = streams
        self._hooks = hooks
        # Never the same twice: a client may reuse a request id that replicas still remember.
        self._transfer = f"{state.name}.{secrets.token_hex(4)}"
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: list[_RunningCall] = []
        self._early: list[inference_pb2.Tokens] = []
        self._decision: asyncio.TimerHandle | None = None
        self._echo: TandemError | None = None
        self._retired = False
        self._resumed = bool(state.output)
        self._abandoned_s: float | None = None

    async def run(self) -> ChoiceSummary:
        """Stream the choice to its end; raises a TandemError. Cancelling ends both calls."""
        try:
            self._begin()
            await self._outcome
        except asyncio.CancelledError:
            self._abandoned_s = time.monotonic()
            raise
        finally:
            if self._decision is not None:
                self._decision.cancel()
            for call in self._calls:
                call.cancel()
        return self._state.times.summary(self._state.choice, self._pair)

    @property
    def stands_still(self) -> bool:
        """Whether the choice was streaming elsewhere, and has no new token yet."""
        return self._resumed and not self._outcome.done()

    def move(self) -> None:
        """End both calls, and let `run` raise ChoiceMoved."""
        self._settle(ChoiceMoved())

    def take(self, call: _RunningCall, kind: str, event: CallEvent) -> None:
        """Take an event of a call, except its end."""
        if kind == "unfinished":
            self._state.times.left_prefill_share_s += event.unfinished.share_s
            return
        if self._outcome.done():
            if kind == "retired":
                # The choice left this replica, or was cancelled.
                self._state.times.left_share_s += event.retired.share_s
            elif kind == "first_token":
                # It crossed the end of the choice.
                self._state.times.left_prefill_share_s += event.first_token.share_s
            return
        try:
            self._act(call, kind, event)
        except TandemError as error:
            self._settle(error)

    def call_ended(self, call: _RunningCall, error: TandemError | None) -> None:
        """Note that a call is over: the replica has freed all its blocks, or is lost."""
        if isinstance(error, ReplicaLost):
            self._hooks.lost(call.replica)
        if not self._pair.local and call is self._calls[0]:
            self._hooks.prefilled()
        over = all(one.ended for one in self._calls)
        if over and self._abandoned_s is not None:
            self._vacated(time.monotonic() - self._abandoned_s)
        if self._outcome.done():
            return
        # After the last token the loss of a replica is no failure of the choice.
        if error is not None and not self._state.finished:
            self._weigh(error, over)
        elif over and self._state.finished:
            self._settle(None)
        elif over:
            none = Internal("both replicas ended without a finish reason")
            self._settle(self._echo or none)

    def _vacated(self, took_s: float) -> None:
        """Note how long an abandoned choice kept its replicas."""
        metrics.TIME_TO_CANCEL.observe(took_s)
        if self._state.times.on_vacated is not None:
            self._state.times.on_vacated(took_s)

    def _begin(self) -> None:
        prefill, decode = self._streams
        self._state.decode_replica = self._pair.decode.id
        if not self._state.output:
            self._state.times.asked(time.monotonic())
        if not self._pair.local:
            self._calls.append(_RunningCall(self, self._pair.prefill))
            self._calls[-1].begin(prefill, self._state.prefill_request(self._transfer, self._pair))
        if self._pair.local or self._state.prepared.sampling.max_tokens != 1:
            self._calls.append(_RunningCall(self, self._pair.decode))
            self._calls[-1].begin(decode, self._state.decode_request(self._transfer, self._pair))

    def _act(self, call: _RunningCall, kind: str, event: CallEvent) -> None:
        if kind == "tokens":
            # The other stream's first token may still be on its way.
            if self._state.output:
                if self._resumed:
                    self._resumed = False
                    self._hooks.prefilled()
                self._emit(event.tokens)
            else:
                self._early.append(event.tokens)
        elif kind == "first_token":
            self._take_first(event.first_token, call.sent_s)
        elif kind == "progress":
            self._report(event.progress)
        elif kind == "admitted":
            self._state.times.admitted(event.admitted, call.sent_s, time.monotonic())
        elif kind == "retired":
            self._state.times.ended(event.retired, call.sent_s)
            self._retired = True
        if self._state.finished and self._over:
            self._settle(None)

    @property
    def _over(self) -> bool:
        """Whether decode, if it had a part in a choice whose last token was sent, has closed."""
        decoded = self._pair.local or len(self._state.output) > 1
        return self._retired or not decoded

    def _take_first(self, first: prefill_pb2.FirstToken, sent_s: float) -> None:
        if self._pair.local:
            self._hooks.prefilled()
        times = self._state.times
        times.first(first, self._pair.prefill.id, sent_s, time.monotonic())
        if self._state.prepared.scored_from is not None:
            self._emit_scores(self._state.prepared.scored_from, first.scores)
        self._emit(first.tokens)
        flush_s, cached = times.first_flush_s, times.cached_tokens
        known = FirstTokenTiming(times.prefill_s, cached, flush_s, times.ttft_s, first.passes)
        # The client comes first: its token does not wait for the statistics.
        asyncio.get_running_loop().call_soon(self._hooks.computed, known)
        for tokens in self._early:
            self._emit(tokens)
        self._early.clear()

    def _report(self, wire: prefill_pb2.PromptProgress) -> None:
        """Pass the progress of the prompt on, until the first token."""
        if self._state.output:
            return
        total = len(self._state.prepared.prompt_ids)
        if wire.queued:
            wait_s = wire.wait_s if wire.HasField("wait_s") else None
            progress = Progress(self._state.choice, "queued", 0, total, wire.position, wait_s)
        else:
            progress = Progress(self._state.choice, "prefill", wire.computed, total)
        self._hooks.emit(progress)

    def _emit(self, wire: inference_pb2.Tokens) -> None:
        run, state = tokens_from_proto(wire), self._state
        if run.index != len(state.output) or state.finished:
            raise Internal(f"token {run.index} came where {len(state.output)} was due")
        state.output += run.ids
        state.finished = run.finish_reason is not None
        self._hooks.emit(
            Tokens(state.choice, run.index, run.ids, run.text, run.finish_reason, run.sampled)
        )

    def _emit_scores(self, first: int, wire: prefill_pb2.Scores) -> None:
        scores, ids = scores_from_proto(wire), self._state.prepared.prompt_ids
        if len(scores.logprobs) != len(ids) - first:
            raise Internal(f"{len(scores.logprobs)} scores for {len(ids) - first} tokens")
        self._hooks.emit(Scored(ids, first, scores))

    def _weigh(self, error: TandemError, over: bool) -> None:
        """End with the failure that explains the end best.

        Both replicas report a broken transfer. Often it follows from another failure, which one of
        them reports next: the replica is overloaded, or it died.
        """
        if isinstance(error, TransferFailed) and not over:
            loop = asyncio.get_running_loop()
            self._echo = error
            self._decision = loop.call_later(_DECISION_S, self._settle, error)
        else:
            self._settle(self._echo or error if isinstance(error, TransferFailed) else error)

    def _settle(self, error: Exception | None) -> None:
        if self._outcome.done():
            return
        if error is None:
            self._outcome.set_result(None)
        else:
            self._outcome.set_exception(error)
