"""The prefill service: one call is one request, from prompt to handed-over KV."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from engine.sequence import Sequence
from engine.text import Completion
from kv_transfer.sender import KvSender
from prefill_pool import metrics
from prefill_pool.early import EarlyHandOver
from prefill_pool.loop import FirstToken, PrefillJob, PrefillLoop
from protos import prefill_pb2, prefill_pb2_grpc
from protos.convert import sequence_from_proto, tokens_to_proto
from protos.status import answers_errors

log = logging.getLogger(__name__)

NewCompletion = Callable[[Sequence], Completion]


class PrefillServicer(prefill_pb2_grpc.PrefillServicer):
    """Answers `Prefill` calls. The end of a call, however it comes, frees what it held."""

    def __init__(
        self, loop: PrefillLoop, sender: KvSender, new_completion: NewCompletion, lease_s: float
    ) -> None:
        self._loop = loop
        self._sender = sender
        self._new_completion = new_completion
        self._lease_s = lease_s

    @answers_errors
    async def Prefill(self, request: prefill_pb2.PrefillRequest, context: Any) -> None:  # noqa: N802
        """Compute the prompt, stream the first token, hand the KV over as it is computed."""
        sequence = sequence_from_proto(request)
        job = self._loop.submit(sequence, request.ttft_budget_s)
        early = EarlyHandOver(self._sender, job, request.decode_replica)
        try:
            first = await job.first_token
            if not await self._send_first(context, job, first):
                sent_bytes = await early.finish(first.token.token, self._lease_s)
                event = prefill_pb2.HandedOver(bytes=sent_bytes)
                await context.write(prefill_pb2.PrefillEvent(handed_over=event))
        finally:
            try:
                # First, as blocks may still be read.
                await early.close("the prefill ended without KV")
            finally:
                self._loop.release(job)

    async def _send_first(self, context: Any, job: PrefillJob, first: FirstToken) -> bool:
        """Stream the first token; True if it ends the request."""
        piece = self._new_completion(job.sequence).push(first.token.token)
        tokens = tokens_to_proto(
            job.sequence.choice, 0, [first.token], piece.text, piece.finish_reason
        )
        event = prefill_pb2.FirstToken(
            tokens=tokens,
            queue_s=first.queue_s,
            prefill_s=first.prefill_s,
            cached_tokens=job.sequence.cached_tokens or 0,
        )
        await context.write(prefill_pb2.PrefillEvent(first_token=event))
        metrics.PREFILL_TIME.observe(first.prefill_s)
        return piece.finish_reason is not None
