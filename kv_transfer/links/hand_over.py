"""One hand-over, as the code that computes the KV uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.errors import DeadlineExceeded, TandemError
from engine.kv.layout import KvLayout
from kv_transfer.links.outgoing_transfer import OutgoingTransfer


class HandOver:
    """KV on offer: reports the progress of its prompt, then waits for its commit."""

    def __init__(
        self,
        outgoing: OutgoingTransfer,
        layout: KvLayout,
        progress: Callable[[OutgoingTransfer], None],
        end: Callable[[OutgoingTransfer, str], Awaitable[None]],
    ) -> None:
        self._outgoing = outgoing
        self._layout = layout
        self._progress = progress
        self._end = end
        self._reason: str | None = None

    def reached(self, tokens: int, layers: int | None = None) -> None:
        """Report that the leading tokens' KV is in its blocks, for the leading layers or for all.

        Full blocks are sent while the rest is computed, if the receiver admitted the early offer.
        """
        # The last block may be filled further, and every block is sent once.
        blocks = tokens // self._layout.block_size
        if tokens >= self._outgoing.kv.tokens:
            blocks = len(self._outgoing.kv.blocks)
        whole = len(self._layout.layers)
        self._outgoing.computed.reach(blocks, whole if layers is None else layers)
        self._progress(self._outgoing)

    def complete(self, first_token: int) -> None:
        """Report that all KV is computed, and the first token sampled."""
        self._outgoing.first_token = first_token
        self.reached(self._outgoing.kv.tokens)

    async def committed(self, timeout_s: float) -> int:
        """Wait for the commit; returns the bytes sent.

        Raises TransferFailed if the link broke or was refused, the receiver gave up, or the KV was
        withdrawn. Raises DeadlineExceeded when the lease of `timeout_s` ends.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._outgoing.finished
        except TimeoutError:
            self._reason = f"its lease of {timeout_s:g} s ended"
            message = f"transfer {self._outgoing.kv.transfer}: {self._reason}"
            raise DeadlineExceeded(message) from None
        except TandemError as error:
            self._reason = error.message
            raise

    async def close(self, reason: str) -> None:
        """End the hand-over. Idempotent, and a cancel does not interrupt it.

        Afterwards this side no longer reads the blocks, and copies of borrowed blocks are invalid.
        Unless the transfer was committed, the receiver is told that the KV will not come. The error
        that `committed` raised is the reason, or else `reason`.
        """
        await self._end(self._outgoing, self._reason or reason)
