"""The prefill service: one call is one request, from prompt to handed-over KV."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from engine.text.completion import ChoiceText
from engine.types.sequence import Sequence
from kv_transfer.sender import KvSender
from prefill_pool import metrics
from prefill_pool.early import EarlyHandOver
from prefill_pool.loop import PrefillJob, PrefillLoop, PrefillResult
from protos import prefill_pb2
from protos.calls_pb2 import CallEvent
from protos.convert import scores_to_proto, tokens_to_proto
from protos.event_sink import EventSink
from protos.prompt_reports import PromptReports
from protos.shared_prompt import SharedPrompt, sequence_from_proto

log = logging.getLogger(__name__)

NewCompletion = Callable[[Sequence], ChoiceText]
# Gives a sequence the matcher of its grammar.
Prepare = Callable[[Sequence], Awaitable[None]]


class PrefillServicer:
    """Answers prefill calls. Any end of a call frees its blocks."""

    def __init__(
        self,
        loop: PrefillLoop,
        sender: KvSender,
        new_completion: NewCompletion,
        lease_s: float,
        prepare: Prepare,
    ) -> None:
        self._loop = loop
        self._sender = sender
        self._new_completion = new_completion
        self._lease_s = lease_s
        self._prepare = prepare
        self._reports = PromptReports(loop.queue_positions)

    async def serve(
        self, request: prefill_pb2.PrefillRequest, prompt: SharedPrompt, sink: EventSink
    ) -> None:
        """Compute the prompt, send the first token, then hand the KV over."""
        arrived_s = time.monotonic()
        sequence = sequence_from_proto(request, prompt)
        await self._prepare(sequence)
        job = self._loop.submit(sequence)
        log.info("prefill waits", extra=sequence.named_in_log | {"tokens": len(sequence.tokens)})
        early = EarlyHandOver(self._sender, job, request.decode_replica)
        answered = False
        try:
            if request.progress:
                self._reports.begin(sequence, sink)
            first = await job.first_token
            self._reports.end(sequence)
            answered = True
            if not self._send_first(sink, job, first, arrived_s):
                sent_bytes = await early.finish(first.token.token, self._lease_s)
                event = prefill_pb2.HandedOver(bytes=sent_bytes)
                sink.put(CallEvent(handed_over=event))
                log.info("KV handed over", extra=sequence.named_in_log | {"bytes": sent_bytes})
        finally:
            self._reports.end(sequence)
            try:
                # Before the blocks are freed, because they may still be read.
                await early.close("the prefill ended without KV")
            finally:
                self._loop.release(job)
                await self._loop.vacated(job)
                if not answered and sequence.pass_s:
                    # The replica has worked for it, which its row tells.
                    unfinished = prefill_pb2.Unfinished(share_s=sequence.pass_s)
                    sink.put(CallEvent(unfinished=unfinished))

    def _send_first(
        self, sink: EventSink, job: PrefillJob, first: PrefillResult, arrived_s: float
    ) -> bool:
        """Send the first token of a call that arrived then; True if it ends the request."""
        piece = self._new_completion(job.sequence).push(first.token.token)
        sequence, token = job.sequence, first.token
        sampled = () if sequence.sampling.logprobs is None else (token,)
        tokens = tokens_to_proto(
            sequence.choice, 0, (token.token,), piece.text, piece.finish_reason, sampled
        )
        now = time.monotonic()
        event = prefill_pb2.FirstToken(
            tokens=tokens,
            queue_s=job.arrived_s - arrived_s + first.queue_s,
            prefill_s=first.prefill_s,
            cached_tokens=sequence.cached_tokens or 0,
            passes=sequence.passes,
            share_s=sequence.pass_s,
            flush_s=now - first.computed_s,
            held_s=now - arrived_s,
            scores=scores_to_proto(sequence.scoring),
        )
        sink.put(CallEvent(first_token=event))
        metrics.PREFILL_TIME.observe(first.prefill_s, lane=sequence.lane)
        times = {"prefill_s": first.prefill_s, "cached_tokens": sequence.cached_tokens or 0}
        log.info("first token sampled", extra=sequence.named_in_log | times)
        return piece.finish_reason is not None
