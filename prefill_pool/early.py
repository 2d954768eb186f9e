"""Hands KV over while its prompt is still being computed."""

from __future__ import annotations

from engine.errors import TandemError
from kv_transfer.sender import HandOver, KvSender, OutgoingKv
from prefill_pool.loop import PrefillJob


class EarlyHandOver:
    """Offers a job's KV once the job has its blocks, and sends it as it is computed.

    A prompt that has begun has all the blocks that it needs. So a decode replica that gives blocks
    early waits for the computing alone. Without a `receiver` nothing is handed over.
    """

    def __init__(self, sender: KvSender, job: PrefillJob, receiver: str) -> None:
        self._sender = sender
        self._job = job
        self._receiver = receiver
        self._handing: HandOver | None = None
        self._failed: TandemError | None = None
        # The KV of a request that ends with its first token is not handed over.
        if job.sequence.sampling.max_tokens != 1:
            job.watch = self._computed

    async def finish(self, first_token: int, lease_s: float) -> int:
        """Complete the KV and wait for its commit; returns the bytes sent.

        See `HandOver.committed` for errors.
        """
        if self._failed is not None:
            raise self._failed
        handing = self._handing = self._handing or self._begin()
        handing.complete(first_token)
        return await handing.committed(lease_s)

    async def close(self, reason: str) -> None:
        """End the reading of the blocks; tells the receiver, unless the KV was committed."""
        self._job.watch = None
        if self._handing is not None:
            await self._handing.close(reason)
        elif self._receiver:
            await self._sender.withdraw(self._job.sequence.owner, self._receiver, reason)

    def _computed(self, tokens: int, layers: int | None) -> None:
        """Send computed KV. Raises nothing, because the prefill loop calls it."""
        try:
            self._handing = self._handing or self._begin()
        except TandemError as error:
            self._failed, self._job.watch = error, None
        else:
            self._handing.reached(tokens, layers)

    def _begin(self) -> HandOver:
        sequence = self._job.sequence
        return self._sender.begin(
            OutgoingKv(
                transfer=sequence.owner,
                receiver=self._receiver,
                blocks=tuple(sequence.blocks),
                tokens=sequence.prompt_tokens,
                first_token=None,
            )
        )
