"""The phases of a request, in order; the one place where all of them appear.

    preprocessor → admission queue → placement → prefill and decode streams → events → release

A choice whose replica is lost on the way goes on in `cluster/router/failover.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.arrival import retry_key, size_of
from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.api import ChatPrompt, ChoiceSummary, GenerateRequest, Prompt, Started, Summary
from cluster.api.gather import together
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.placement.decode_capacity import token_capacity
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest, one_of
from cluster.router.accounting import RequestAccount
from cluster.router.choice_stream import Emit
from cluster.router.decode_progress import DecodeProgress
from cluster.router.event_buffer import EventBuffer
from cluster.router.failover import Failover
from cluster.router.preprocessor import Preprocessor
from cluster.router.resume_state import ChoiceSoFar, PreparedRequest, ResumeState
from cluster.router.rows.choice_row import ended_elsewhere
from cluster.router.rows.stage_times import StageTimes
from cluster.router.stream_metrics import StreamMetrics
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.requests.stages import stages_of
from engine.errors import DeadlineExceeded, PromptTooLong

log = logging.getLogger(__name__)

# Bound: larger choices begin one by one, each in a pass of the event loop of its own.
LARGE_TOKENS = 4096
# Bound: the least time for the rest of a request that another router began.
_LEAST_REST_S = 60.0


# Says where the events of a choice go.
EmitOf = Callable[[ResumeState], Emit]
# Takes the Started of an admitted request, and says where its events go.
Begin = Callable[[PreparedRequest, Started], EmitOf]


class RequestPhases:
    """Runs requests through their phases. A request that takes longer than `timeout_s` fails."""

    def __init__(
        self,
        timeout_s: float,
        preprocessor: Preprocessor,
        pools: HealthyReplicas,
        placement: Placement,
        admission: AdmissionQueue,
        failover: Failover,
    ) -> None:
        self._timeout_s = timeout_s
        self._preprocessor = preprocessor
        self._pools = pools
        self._placement = placement
        self._admission = admission
        self._failover = failover
        self._beginning = asyncio.Lock()

    async def run(
        self,
        request: GenerateRequest,
        account: RequestAccount,
        events: EventBuffer,
        begin: Begin,
    ) -> Summary:
        """Serve a request. Its progress goes to `events`, and its tokens where `begin` says.

        Raises a TandemError.
        """
        async with self._within(self._timeout_s):
            prepared, assignments = await self._enter(request, account, events)
            seed, prompt_tokens = prepared.sampling.seed or 0, len(prepared.prompt_ids)
            metrics.PROMPT_TOKENS.inc(prompt_tokens, **account.labels)
            try:
                name = self._preprocessor.model.name
                started = Started(account.request_id, name, prompt_tokens, seed, form=prepared.form)
                emit_of = begin(prepared, started)
                runs = [
                    self._run_choice(
                        ResumeState(prepared, choice, StageTimes(account.began_s)),
                        one,
                        account,
                        emit_of,
                    )
                    for choice, one in enumerate(assignments)
                ]
                return _summary(prepared, await together(runs), account.began_s)
            finally:
                for assignment in assignments:
                    assignment.release()

    async def count(self, model: str, prompt: ChatPrompt) -> int:
        """The tokens of a chat. Raises a TandemError."""
        async with self._within(self._timeout_s):
            with _named(prompt):
                return await self._preprocessor.count(model, prompt)

    async def go_on(
        self,
        request: GenerateRequest,
        account: RequestAccount,
        emit_of: EmitOf,
        so_far: Sequence[ChoiceSoFar],
    ) -> Summary:
        """Serve the rest of a request that another router began. Raises a TandemError."""
        # Nobody worked on it for a while, so it has some time in any case.
        left_s = max(_LEAST_REST_S, self._timeout_s - (time.monotonic() - account.began_s))
        async with self._within(left_s):
            prepared = await self._prepare(request, account)
            account.prompt_ids = prepared.prompt_ids
            wanted = one_of(placement_request(prepared, account.began_s, account.tenant, request))
            runs = []
            for choice, one in enumerate(so_far):
                state = one.resume_state(prepared, choice)
                runs.append(self._adopt_choice(state, wanted, account, emit_of))
            return _summary(prepared, await together(runs), account.began_s)

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            what = f"the request took more than {self._timeout_s:g} s"
            raise DeadlineExceeded(what) from None

    async def _enter(
        self, request: GenerateRequest, account: RequestAccount, events: EventBuffer
    ) -> tuple[PreparedRequest, list[Assignment]]:
        """Prepare and admit a new request. A prompt that is too long is named by its field."""
        with _named(request.prompt):
            prepared = await self._prepare(request, account)
            if prepared.delivery.at_end:
                events.keep_text()
            account.prompt_ids = prepared.prompt_ids
            wanted = placement_request(prepared, account.began_s, account.tenant, request)
            tell = events.put if prepared.delivery.progress else None
            return prepared, await self._admission.enter(wanted, tell, account.wait)

    async def _prepare(self, request: GenerateRequest, account: RequestAccount) -> PreparedRequest:
        """Prepare a request. The KV of the largest decode replica bounds its `max_tokens`."""
        records = self._pools.healthy("decode")
        most = max((token_capacity(record) for record in records), default=None)
        return await self._preprocessor.prepare(
            request, account.request_id, most, account.traceparent
        )

    async def _adopt_choice(
        self,
        state: ResumeState,
        wanted: PlacementRequest,
        account: RequestAccount,
        emit_of: EmitOf,
    ) -> tuple[ChoiceSummary, int]:
        """Stream the rest of a choice, whose load was not counted here before."""
        if state.finished:
            return _of_another_router(state, account), len(state.output)
        for record in self._pools.healthy("decode"):
            if record.id == state.decode_replica:
                self._placement.learn(record, state.prepared.digests(state.output[:-1]))
        assignment = await self._failover.adopt(state, wanted)
        try:
            return await self._run_choice(state, assignment, account, emit_of)
        finally:
            assignment.release()

    async def _run_choice(
        self,
        state: ResumeState,
        assignment: Assignment,
        account: RequestAccount,
        emit_of: EmitOf,
    ) -> tuple[ChoiceSummary, int]:
        """Stream one assigned choice; returns its summary and its number of tokens."""
        prepared = state.prepared
        if _wire_tokens(prepared) > LARGE_TOKENS:
            # Two replicas may get its prompt now, and then other requests have their turn.
            async with self._beginning:
                await asyncio.sleep(0)
        emit = emit_of(state)
        if prepared.delivery.at_end and prepared.delivery.progress:
            emit = DecodeProgress(emit, prepared.sampling.max_tokens or 1)
        if prepared.lane != "batch":
            state.left_s = max(0.0, assignment.plan.forecast.deadline_s - time.monotonic())
        form, choice = prepared.form, state.choice
        stream = StreamMetrics(account.labels, assignment, state.times, emit, form, choice)
        stream.follow(state.earlier)
        account.streams.append(stream)
        account.first_output = account.first_output if choice else state.output
        pair, names = assignment.plan.pair, state.named_in_log
        where = {"prefill": pair.prefill.id, "decode": pair.decode.id}
        log.info("request assigned", extra=names | where)

        def computed(first: FirstTokenTiming) -> None:
            log.info("first token passed on", extra=names | {"ttft_s": first.ttft_s})
            account.first_token(first.ttft_s)
            stream.first(first)
            self._admission.computed(assignment, first)

        try:
            summary = await self._failover.run(state, assignment, stream.take, computed)
            stream.finished(summary)
            summary = stream.with_stages(summary) if account.timing else summary
            return summary, len(state.output)
        finally:
            stream.close()
            pair, output = assignment.plan.pair, state.output
            # The last token's own KV is never computed, and a first token may be prefill's alone.
            if pair.local or len(output) > 1:
                self._placement.learn(pair.decode, prepared.digests(output[:-1]))
            self._admission.assigner.release(assignment, len(output))


def _of_another_router(state: ResumeState, account: RequestAccount) -> ChoiceSummary:
    """The summary of a choice that another router saw end; its row goes to the account."""
    came_s, tokens = [at_s for at_s, _ in state.earlier], len(state.output)
    row = ended_elsewhere(
        state.choice, state.times, came_s, tokens, state.decode_replica, time.monotonic()
    )
    account.ended_elsewhere.append(row)
    summary = state.times.summary(state.choice, None)
    return replace(summary, stages=stages_of(row)) if account.timing else summary


def _summary(
    prepared: PreparedRequest, results: Sequence[tuple[ChoiceSummary, int]], began_s: float
) -> Summary:
    return Summary(
        prompt_tokens=len(prepared.prompt_ids),
        completion_tokens=sum(tokens for _, tokens in results),
        choices=tuple(summary for summary, _ in results),
        total_s=time.monotonic() - began_s,
    )


def _wire_tokens(prepared: PreparedRequest) -> int:
    """Roughly the numbers and characters that a request sends to each replica, once."""
    sampling = prepared.sampling
    lists = len(sampling.logit_bias) + len(sampling.stop_token_ids)
    texts = sum(map(len, sampling.stop))
    if sampling.grammar is not None:
        texts += len(sampling.grammar.text)
    return len(prepared.prompt_ids) + lists + texts // 4


def placement_request(
    prepared: PreparedRequest, arrived_s: float, tenant: str, request: GenerateRequest
) -> PlacementRequest:
    """The request as admission and placement see it. It arrived at `arrived_s`.

    The request counts for `tenant`.
    """
    return PlacementRequest(
        prompt_tokens=len(prepared.prompt_ids),
        most_tokens=prepared.most_tokens,
        digests=prepared.digests(),
        choices=prepared.choices,
        arrived_s=arrived_s,
        budget_s=prepared.ttft_budget_s,
        itl_s=prepared.itl_s,
        batch=prepared.lane == "batch",
        key=retry_key(request),
        tenant=tenant,
        request_id=prepared.request_id,
        scored_from=prepared.scored_from,
        size=size_of(request.prompt),
    )


@contextmanager
def _named(prompt: Prompt) -> Iterator[None]:
    """Name a prompt that is too long by its field."""
    try:
        yield
    except PromptTooLong as error:
        if isinstance(prompt, ChatPrompt):
            error.field = "messages"
        raise
