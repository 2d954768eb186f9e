"""The decode service: one call is one request, from handed-over KV to its last token.

Or from its prompt, where most of that is cached here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from decode_pool import metrics
from decode_pool.job import DecodeJob, Emission, Flush
from decode_pool.loop import DecodeLoop
from engine.sequence import Sequence
from engine.text import Completion
from kv_transfer.receiver import KvReceiver, OfferedKv, Peer, ReceivedKv
from protos import decode_pb2, decode_pb2_grpc, inference_pb2, prefill_pb2
from protos.convert import sequence_from_proto, tokens_to_proto
from protos.status import answers_errors

log = logging.getLogger(__name__)

NewCompletion = Callable[[Sequence], Completion]


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """Answers `Decode` calls. The end of a call, however it comes, frees what it held."""

    def __init__(
        self,
        loop: DecodeLoop,
        receiver: KvReceiver,
        new_completion: NewCompletion,
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._receiver = receiver
        self._new_completion = new_completion
        self._timeout_s = timeout_s
        self._grants = 0

    @answers_errors
    async def Decode(self, request: decode_pb2.DecodeRequest, context: Any) -> None:  # noqa: N802
        """Receive the KV or compute it, join the batch, stream every token not streamed yet."""
        sequence = sequence_from_proto(request)
        job = DecodeJob(
            sequence,
            self._new_completion(sequence),
            local=request.local_prefill,
            flush=Flush(request.flush_s, max(1, request.flush_tokens)),
        )
        self._loop.register(job)
        try:
            if job.local:
                await self._prefill_here(job, context)
            else:
                peer = Peer(request.prefill_replica, request.prefill_address)
                received = await self._receive(job, peer)
                self._loop.commit(job)
                await context.write(decode_pb2.DecodeEvent(admitted=_admitted(received)))
            began_s = time.monotonic()
            await self._stream(job, context)
            retired = decode_pb2.Retired(
                preemptions=job.preemptions, decode_s=time.monotonic() - began_s
            )
            await context.write(decode_pb2.DecodeEvent(retired=retired))
        finally:
            self._loop.release(job)

    async def _prefill_here(self, job: DecodeJob, context: Any) -> None:
        """Compute what is not cached of the prompt, between the others' steps; stream token 0."""
        arrived_s = time.monotonic()
        await self._loop.admit(job)
        granted_s = time.monotonic()
        emission = await job.next()
        assert job.first_s is not None
        first = prefill_pb2.FirstToken(
            tokens=_to_proto(job, emission),
            queue_s=granted_s - arrived_s,
            prefill_s=max(0.0, job.first_s - granted_s),
            cached_tokens=job.sequence.cached_tokens or 0,
        )
        metrics.LOCAL_PREFILLS.inc(1)
        await context.write(decode_pb2.DecodeEvent(first_token=first))

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
        metrics.TRANSFER_TIME.observe(received.transfer_s)
        metrics.TRANSFER_BYTES.inc(received.bytes)
        return received

    async def _stream(self, job: DecodeJob, context: Any) -> None:
        while not job.drained:
            tokens = _to_proto(job, await job.next())
            await context.write(decode_pb2.DecodeEvent(tokens=tokens))


def _to_proto(job: DecodeJob, emission: Emission) -> inference_pb2.Tokens:
    return tokens_to_proto(
        job.sequence.choice,
        emission.index,
        emission.tokens,
        emission.text,
        emission.finish_reason,
    )


def _admitted(received: ReceivedKv) -> decode_pb2.Admitted:
    return decode_pb2.Admitted(
        transfer_s=received.transfer_s,
        admission_s=received.admission_s,
        bytes=received.bytes,
    )
