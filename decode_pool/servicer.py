"""The decode service: one call is one request, from handed-over KV to its last token.

A request with local prefill begins with its prompt. A request that failed over begins with the
output that another replica sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from decode_pool import metrics
from decode_pool.job import DecodeJob, Emission, Flush
from decode_pool.loop import DecodeLoop
from engine.text.completion import ChoiceText
from engine.types.sequence import Sequence
from kv_transfer.receiver import KvReceiver, OfferedKv, Peer, ReceivedKv
from protos import decode_pb2, prefill_pb2
from protos.calls_pb2 import CallEvent
from protos.convert import scores_to_proto, tokens_to_proto
from protos.event_sink import Collect, EventSink
from protos.prompt_reports import PromptReports
from protos.shared_prompt import SharedPrompt, sequence_from_proto
from tandem_client.protos import inference_pb2

log = logging.getLogger(__name__)

NewCompletion = Callable[[Sequence], ChoiceText]
# Gives a sequence the matcher of its grammar.
Prepare = Callable[[Sequence], Awaitable[None]]


class DecodeServicer:
    """Answers decode calls. Any end of a call frees its blocks."""

    def __init__(
        self,
        loop: DecodeLoop,
        receiver: KvReceiver,
        new_completion: NewCompletion,
        timeout_s: float,
        prepare: Prepare,
    ) -> None:
        self._loop = loop
        self._receiver = receiver
        self._new_completion = new_completion
        self._timeout_s = timeout_s
        self._prepare = prepare
        self._grants = 0
        self._reports = PromptReports(loop.queue_positions)

    async def serve(
        self, request: decode_pb2.DecodeRequest, prompt: SharedPrompt, sink: EventSink
    ) -> None:
        """Receive the KV or compute it, join the batch, and send every token not sent yet."""
        arrived_s = time.monotonic()
        sequence = sequence_from_proto(request, prompt)
        await self._prepare(sequence)
        job = DecodeJob(
            sequence,
            self._new_completion(sequence),
            local=request.local_prefill,
            flush=Flush(request.flush_s, max(1, request.flush_tokens)),
        )
        self._loop.register(job)
        log.info("decode waits", extra=sequence.named_in_log | {"local": job.local})
        try:
            received = None
            if job.failed_over:
                collect = await self._resume_here(job)
            elif job.local:
                collect = await self._prefill_here(job, request.progress, sink, arrived_s)
            else:
                peer = Peer(request.prefill_replica, request.prefill_address)
                received = await self._receive(job, peer)
                self._loop.commit(job)
                collect = _tokens_of(job)
            began_s = time.monotonic()
            if received is not None:
                sink.put(
                    CallEvent(admitted=_admitted(received, job.waited_for, arrived_s, began_s))
                )
            job.listen(lambda due_s: sink.ready(collect, due_s))
            await job.drained
            if job.local and not job.failed_over and job.first_s is not None:
                began_s = job.first_s  # the prompt has its own time
            decode_s = job.collected_s - began_s
            held_s = job.collected_s - arrived_s
            sink.put(CallEvent(retired=_retired(job, decode_s, held_s)))
            log.info("decode ended", extra=_ending(job, decode_s))
        except asyncio.CancelledError:
            # The replica has worked for it, which its row tells.
            job.end_steps()
            if job.steps.steps:
                sink.put(CallEvent(retired=_retired(job, 0.0, 0.0)))
            raise
        finally:
            self._reports.end(sequence)
            self._loop.release(job)
            await self._loop.vacated(job)
            if job.local and job.first_s is None and sequence.pass_s:
                unfinished = prefill_pb2.Unfinished(share_s=sequence.pass_s)
                sink.put(CallEvent(unfinished=unfinished))

    async def _resume_here(self, job: DecodeJob) -> Collect:
        """Compute a stream again that another replica had."""
        arrived_s = time.monotonic()
        await self._loop.admit(job)
        queue_s = time.monotonic() - arrived_s
        log.info("stream resumes here", extra=job.sequence.named_in_log | {"queue_s": queue_s})
        return _tokens_of(job)

    async def _prefill_here(
        self, job: DecodeJob, progress: bool, sink: EventSink, arrived_s: float
    ) -> Collect:
        """Compute the part of the prompt that is not cached, between steps of other requests."""
        if progress:
            self._reports.begin(job.sequence, sink)
        await self._loop.admit(job)
        granted_s = time.monotonic()
        metrics.LOCAL_PREFILLS.inc(1)
        queue_s = granted_s - arrived_s
        log.info("prefill starts here", extra=job.sequence.named_in_log | {"queue_s": queue_s})
        tokens = _with_first_token(job, arrived_s, granted_s)
        return self._reports.begin(job.sequence, sink, tokens) if progress else tokens

    async def _receive(self, job: DecodeJob, peer: Peer) -> ReceivedKv:
        async def admit(offered: OfferedKv) -> tuple[list[int], int] | None:
            if offered.first_token is not None:
                job.take_first(offered.first_token)
                await self._loop.admit(job)
            elif not self._loop.admit_early(job):
                return None
            self._grants += 1
            return job.sequence.blocks[: offered.blocks], self._grants

        received = await self._receiver.receive(peer, job.sequence.owner, admit, self._timeout_s)
        if not job.sequence.output_tokens:
            job.take_first(received.first_token)
        metrics.ADMISSION_WAIT.observe(received.admission_s)
        metrics.TRANSFER_TIME.observe(received.transfer_s)
        metrics.TRANSFER_BYTES.inc(received.bytes)
        times = {"transfer_s": received.transfer_s, "admission_s": received.admission_s}
        log.info("decode started", extra=job.sequence.named_in_log | times)
        return received


def _tokens_of(job: DecodeJob) -> Collect:
    """A function that collects the tokens of the job."""

    def collect() -> CallEvent | None:
        emission = job.collect()
        return None if emission is None else CallEvent(tokens=_to_proto(job, emission))

    return collect


def _with_first_token(job: DecodeJob, arrived_s: float, granted_s: float) -> Collect:
    """A function that collects the tokens of a job with its own first token."""

    def collect() -> CallEvent | None:
        emission = job.collect()
        if emission is None:
            return None
        tokens = _to_proto(job, emission)
        if emission.index:
            return CallEvent(tokens=tokens)
        assert job.first_s is not None
        # The task may hear of the grant only after the prompt was computed.
        now, begun_s = time.monotonic(), min(granted_s, job.first_s)
        first = prefill_pb2.FirstToken(
            tokens=tokens,
            queue_s=begun_s - arrived_s,
            prefill_s=job.first_s - begun_s,
            cached_tokens=job.sequence.cached_tokens or 0,
            passes=job.sequence.passes,
            share_s=job.sequence.pass_s,
            flush_s=now - job.first_s,
            held_s=now - arrived_s,
            scores=scores_to_proto(job.sequence.scoring),
        )
        return CallEvent(first_token=first)

    return collect


def _to_proto(job: DecodeJob, emission: Emission) -> inference_pb2.Tokens:
    tokens = emission.tokens
    return tokens_to_proto(
        job.sequence.choice,
        emission.index,
        [token.token for token in tokens],
        emission.text,
        emission.finish_reason,
        tokens if job.sequence.sampling.logprobs is not None else (),
    )


def _admitted(
    received: ReceivedKv, waited_for: str, arrived_s: float, began_s: float
) -> decode_pb2.Admitted:
    return decode_pb2.Admitted(
        transfer_s=received.transfer_s,
        admission_s=received.admission_s,
        bytes=received.bytes,
        waited_for=waited_for,
        offered_s=received.offered_s - arrived_s,
        held_s=began_s - arrived_s,
    )


def _ending(job: DecodeJob, decode_s: float) -> dict[str, object]:
    tokens, preemptions = job.sequence.output_tokens, job.preemptions
    counts = {"tokens": tokens, "preemptions": preemptions, "decode_s": decode_s}
    return job.sequence.named_in_log | counts


def _retired(job: DecodeJob, decode_s: float, held_s: float) -> decode_pb2.Retired:
    return decode_pb2.Retired(
        preemptions=job.preemptions,
        decode_s=decode_s,
        held_s=held_s,
        steps=job.steps.steps,
        stepping_s=job.steps.seconds,
        mean_batch=job.steps.mean_batch,
        share_s=job.steps.share_s,
        straggler_steps=job.straggler_steps,
        recomputed_tokens=job.recomputed_tokens,
    )
