"""One hand-over in the hands of whoever computes the KV."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.errors import DeadlineExceeded, TandemError
from engine.kv.layout import KvLayout
from kv_transfer.links.outgoing_transfer import OutgoingTransfer


class HandOver:
    """KV on offer: how far it is computed, and then the wait for its commit."""

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
        """The KV of the leading tokens is in their blocks, for the leading layers or for all.

        Full blocks leave while the rest is computed, if the receiver had blocks to give early.
        """
        # The last block may be filled further, and is sent once.
        blocks = tokens // self._layout.block_size
        if tokens >= self._outgoing.kv.tokens:
            blocks = len(self._outgoing.kv.blocks)
        whole = len(self._layout.layers)
        self._outgoing.computed.reach(blocks, whole if layers is None else layers)
        self._progress(self._outgoing)

    def complete(self, first_token: int) -> None:
        """All is computed, and the first token is sampled."""
        self._outgoing.first_token = first_token
        self.reached(self._outgoing.kv.tokens)

    async def committed(self, timeout_s: float) -> int:
        """Bytes sent, once the receiver has them all.

        TransferFailed: the link broke or was refused, or the receiver gave up, or the KV was
        withdrawn. DeadlineExceeded: the lease of `timeout_s` ended.
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
        """When this has ended, however often cancelled, the blocks are no longer read. Idempotent.

        Who still copies what was lent does it in vain.

        Unless it was committed, the receiver is told that nothing will come: because of what
        `committed` raised, or else for that reason.
        """
        await self._end(self._outgoing, self._reason or reason)
