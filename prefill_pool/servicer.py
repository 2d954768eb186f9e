"""The prefill service: one call is one request, from prompt to handed-over KV."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.sequence import Sequence
from engine.text import Completion
from kv_transfer.sender import KvSender, OutgoingKv
from prefill_pool import metrics
from prefill_pool.loop import FirstToken, PrefillJob, PrefillLoop
from protos import prefill_pb2
from protos.calls_pb2 import CallEvent
from protos.convert import sequence_from_proto, tokens_to_proto
from protos.outlet import Outlet

log = logging.getLogger(__name__)

NewCompletion = Callable[[Sequence], Completion]


class PrefillServicer:
    """Answers prefill calls. The end of a call, however it comes, frees what it held."""

    def __init__(
        self, loop: PrefillLoop, sender: KvSender, new_completion: NewCompletion, lease_s: float
    ) -> None:
        self._loop = loop
        self._sender = sender
        self._new_completion = new_completion
        self._lease_s = lease_s

    async def serve(self, request: prefill_pb2.PrefillRequest, outlet: Outlet) -> None:
        """Compute the prompt, send the first token, then hand the KV over."""
        sequence = sequence_from_proto(request)
        handed_over = False
        job = self._loop.submit(sequence)
        try:
            first = await job.first_token
            if not self._send_first(outlet, job, first):
                sent_bytes = await self._hand_over(job, first, request.decode_replica)
                handed_over = True
                event = prefill_pb2.HandedOver(bytes=sent_bytes)
                outlet.put(CallEvent(handed_over=event))
        finally:
            self._loop.release(job)
            if not handed_over:
                await self._sender.withdraw(
                    request.transfer, request.decode_replica, "the prefill ended without KV"
                )
            await self._loop.vacated(job)

    def _send_first(self, outlet: Outlet, job: PrefillJob, first: FirstToken) -> bool:
        """Send the first token; True if it ends the request."""
        piece = self._new_completion(job.sequence).push(first.token.token)
        sequence, token = job.sequence, first.token
        sampled = () if sequence.sampling.logprobs is None else (token,)
        tokens = tokens_to_proto(
            sequence.choice, 0, (token.token,), piece.text, piece.finish_reason, sampled
        )
        event = prefill_pb2.FirstToken(
            tokens=tokens,
            queue_s=first.queue_s,
            prefill_s=first.prefill_s,
            cached_tokens=sequence.cached_tokens or 0,
        )
        outlet.put(CallEvent(first_token=event))
        metrics.PREFILL_TIME.observe(first.prefill_s)
        return piece.finish_reason is not None

    async def _hand_over(self, job: PrefillJob, first: FirstToken, receiver: str) -> int:
        sequence = job.sequence
        offer = OutgoingKv(
            transfer=sequence.owner,
            receiver=receiver,
            blocks=tuple(sequence.blocks),
            tokens=sequence.prompt_tokens,
            first_token=first.token.token,
        )
        return await self._sender.hand_over(offer, self._lease_s)
