"""One choice of a request on one pair of replicas.

The first token comes from prefill, the rest from decode, or all from a decode replica that computes
the prompt itself; each is checked to be the next.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from cluster import metrics
from cluster.api import ChoiceSummary, Tokens
from cluster.door import Prepared
from cluster.gate import FirstToken
from cluster.membership import ReplicaRecord
from cluster.placement import Pair
from cluster.status import error_from_rpc
from engine.errors import Internal, ReplicaLost, TandemError, TransferFailed
from protos import decode_pb2, decode_pb2_grpc, inference_pb2, prefill_pb2, prefill_pb2_grpc
from protos.convert import sampling_to_proto, tokens_from_proto
from protos.status import CLASS_TRAILER

log = logging.getLogger(__name__)

Emit = Callable[[Tokens], Awaitable[None]]
Lost = Callable[[ReplicaRecord], None]
# How long the echo of a failure waits for the failure itself.
_VERDICT_S = 0.5


@dataclass(slots=True)
class _Times:
    """When things happened, for the summary; durations as the replicas measured them."""

    began_s: float
    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    transfer_s: float = 0.0
    admission_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    cached_tokens: int = 0


class ChoiceRun:
    """Drives the two streams of a choice. `began_s` is when the request reached the router.

    `output` has the tokens sent so far.
    """

    def __init__(
        self,
        prepared: Prepared,
        choice: int,
        pair: Pair,
        channels: tuple[grpc.aio.Channel, grpc.aio.Channel],
        *,
        began_s: float,
        timeout_s: float,
        emit: Emit,
        lost: Lost,
        prefilled: Callable[[], None],
        computed: Callable[[FirstToken], None],
    ) -> None:
        self.output: list[int] = []
        self._prepared = prepared
        self._choice = choice
        self._pair = pair
        self._channels = channels
        self._timeout_s = timeout_s
        self._emit_event = emit
        self._lost = lost
        self._prefilled = prefilled
        self._computed = computed
        self._times = _Times(began_s)
        # Never the same twice: a client may send a request id again while its past is remembered.
        self._transfer = f"{prepared.request_id}.{choice}.{secrets.token_hex(4)}"
        self._first_sent = asyncio.Event()
        self._finished = False
        self._emitted = False
        self._retired = False

    @property
    def _over(self) -> bool:
        """Whether nothing more is to come: the last token was sent, and decode has closed."""
        decoded = self._pair.local or len(self.output) > 1
        return self._emitted and (self._retired or not decoded)

    async def run(self) -> ChoiceSummary:
        """Stream the choice to its end; raises a TandemError. Cancelling ends both calls."""
        tasks = set()
        if not self._pair.local:
            tasks.add(asyncio.create_task(self._prefill()))
        if self._pair.local or self._prepared.sampling.max_tokens != 1:
            tasks.add(asyncio.create_task(self._decode()))
        try:
            await self._settle(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self._finished:
            raise Internal("both replicas ended without a finish reason")
        return self._summary()

    async def _settle(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait until the choice is finished or a call fails; raise what explains it best.

        A broken transfer is told by both replicas, and is often the echo of something that one of
        them is about to say: that it has no room, or nothing more, because it is dead.
        """
        waiting = tasks
        while waiting and not self._over:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            errors = _errors(done)
            if not errors or self._over:
                continue
            if waiting and all(isinstance(error, TransferFailed) for error in errors):
                done, _ = await asyncio.wait(waiting, timeout=_VERDICT_S)
                errors += _errors(done)
                if self._over:
                    return
            others = (error for error in errors if not isinstance(error, TransferFailed))
            raise next(others, errors[0])

    async def _prefill(self) -> None:
        placed_s = time.monotonic()
        stub = prefill_pb2_grpc.PrefillStub(self._channels[0])
        request = prefill_pb2.PrefillRequest(
            transfer=self._transfer,
            prompt_ids=self._prepared.prompt_ids,
            sampling=sampling_to_proto(self._prepared.sampling),
            choice=self._choice,
            decode_replica=self._pair.decode.id,
            ttft_budget_s=self._prepared.ttft_budget_s,
            lane=self._prepared.lane,
            request_id=self._prepared.request_id,
            tenant=self._prepared.tenant,
        )
        call = stub.Prefill(request, timeout=self._timeout_s)
        try:
            with self._ending(call, self._pair.prefill):
                async for event in call:
                    if event.HasField("first_token"):
                        await self._take_first(event.first_token, placed_s)
        finally:
            self._prefilled()

    async def _take_first(self, first: prefill_pb2.FirstToken, placed_s: float) -> None:
        times = self._times
        await self._emit(first.tokens)
        times.ttft_s = time.monotonic() - times.began_s
        metrics.TTFT.observe(times.ttft_s)
        times.queue_s = placed_s - times.began_s + first.queue_s
        times.prefill_s = first.prefill_s
        times.cached_tokens = first.cached_tokens
        flush_s = times.ttft_s - times.queue_s - times.prefill_s
        self._computed(FirstToken(times.prefill_s, times.cached_tokens, flush_s, times.ttft_s))
        self._first_sent.set()

    async def _decode(self) -> None:
        placed_s = time.monotonic()
        stub = decode_pb2_grpc.DecodeStub(self._channels[1])
        request = decode_pb2.DecodeRequest(
            transfer=self._transfer,
            prompt_ids=self._prepared.prompt_ids,
            sampling=sampling_to_proto(self._prepared.sampling),
            choice=self._choice,
            prefill_replica=self._pair.prefill.id,
            prefill_address=self._pair.prefill.address,
            request_id=self._prepared.request_id,
            tenant=self._prepared.tenant,
            local_prefill=self._pair.local,
            flush_s=self._prepared.flush.ms / 1000,
            flush_tokens=self._prepared.flush.tokens,
            lane=self._prepared.lane,
            ttft_budget_s=self._prepared.ttft_budget_s,
        )
        call = stub.Decode(request, timeout=self._timeout_s)
        with self._ending(call, self._pair.decode):
            async for event in call:
                if event.HasField("first_token"):
                    await self._take_first(event.first_token, placed_s)
                elif event.HasField("tokens"):
                    await self._first_sent.wait()
                    await self._emit(event.tokens)
                else:
                    self._note(event)

    def _note(self, event: decode_pb2.DecodeEvent) -> None:
        if event.HasField("admitted"):
            self._times.transfer_s = event.admitted.transfer_s
            self._times.admission_s = event.admitted.admission_s
        else:
            self._times.decode_s = event.retired.decode_s
            self._times.preemptions = event.retired.preemptions
            self._retired = True

    async def _emit(self, wire: inference_pb2.Tokens) -> None:
        run = tokens_from_proto(wire)
        if run.index != len(self.output) or self._finished:
            raise Internal(f"token {run.index} came where {len(self.output)} was due")
        self.output += [token.token for token in run.tokens]
        # Said before the client is: what the other replica does from here on is no failure.
        self._finished = run.finish_reason is not None
        metrics.GENERATED.inc(len(run.tokens))
        await self._emit_event(
            Tokens(self._choice, run.index, run.tokens, run.text, run.finish_reason)
        )
        self._emitted = self._finished

    @contextmanager
    def _ending(self, call: Any, replica: ReplicaRecord) -> Iterator[None]:
        """Ends the call on the way out; its failure comes out as a TandemError."""
        try:
            yield
        except grpc.aio.AioRpcError as failure:
            if not self._finished:
                raise self._error(failure, replica) from None
        finally:
            call.cancel()

    def _error(self, failure: grpc.aio.AioRpcError, replica: ReplicaRecord) -> TandemError:
        answered = any(key == CLASS_TRAILER for key, _ in failure.trailing_metadata() or ())
        if failure.code() is not grpc.StatusCode.UNAVAILABLE or answered:
            return error_from_rpc(failure)
        self._lost(replica)
        return ReplicaLost(f"{replica.role} replica {replica.id} was lost", retry_after_s=1.0)

    def _summary(self) -> ChoiceSummary:
        times = self._times
        return ChoiceSummary(
            choice=self._choice,
            queue_s=times.queue_s,
            prefill_s=times.prefill_s,
            first_flush_s=times.ttft_s - times.queue_s - times.prefill_s,
            ttft_s=times.ttft_s,
            transfer_s=times.transfer_s,
            decode_admission_s=times.admission_s,
            decode_s=times.decode_s,
            preemptions=times.preemptions,
            prefill_replica=self._pair.prefill.id,
            decode_replica=self._pair.decode.id,
            cached_tokens=times.cached_tokens,
        )


def _errors(done: set[asyncio.Task[None]]) -> list[BaseException]:
    return [error for task in done if (error := task.exception()) is not None]
