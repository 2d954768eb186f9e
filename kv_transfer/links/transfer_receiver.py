"""Pulling the transfers of one link, from their offers to their commits.

expect ─▶ (Offer) ─▶ admission ─▶ Pull ─▶ (frames or copies, Done) ─▶ Committed
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.errors import Internal, TransferFailed
from kv_transfer.aio.bounded_map import BoundedMap
from kv_transfer.aio.waits import fail, settle, succeed, unless_failed
from kv_transfer.errors import LinkBroken, LinkRefused, Withdrawn
from kv_transfer.frames.borrowed_blocks import BorrowedBlocks, Borrower
from kv_transfer.frames.frame_plan import Coverage
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.incoming_transfer import IncomingTransfer, OfferedKv, ReceivedKv
from kv_transfer.links.shared import Shared
from protos import kv_transfer_pb2 as pb

T = TypeVar("T")
# Gives blocks and their generation for an offer; None refuses an early offer.
Admit = Callable[[OfferedKv], Awaitable[tuple[list[int], int] | None]]


class TransferReceiver:
    """The transfers of one link that are expected, on offer, or under way.

    `send` queues a message to the sender. `borrower` copies out of the sender's blocks; it is None
    where they cannot be reached.
    """

    def __init__(self, shared: Shared, send: Callable[..., None]) -> None:
        self.borrower: Borrower | None = None
        self._shared = shared
        self._send = send
        self._over = False
        self._transfers: dict[str, IncomingTransfer] = {}
        self._early: dict[str, pb.Offer] = {}
        self._withdrawn: BoundedMap[str, str] = BoundedMap(shared.config.max_transfers)

    @property
    def idle(self) -> bool:
        """Whether no transfer is expected, on offer, or under way."""
        return not self._transfers and not self._early

    def under_way(self, transfer: str) -> IncomingTransfer | None:
        """The transfer of that name, unless it has ended."""
        incoming = self._transfers.get(transfer)
        return None if incoming is None or incoming.ended else incoming

    async def receive(self, transfer: str, admit: Admit) -> ReceivedKv:
        """Pull one transfer; once this has ended, nothing writes to its blocks any more."""
        incoming = self._expect(transfer)
        reason = "the receiver gave up"
        try:
            offer, offered_s = await self._admitted(incoming, admit)
            pulled_s = time.monotonic()
            self._pull(incoming, offer)
            moved = await _result(incoming.finished)
            self._send(committed=pb.Committed(transfer=transfer))
            incoming.committed = True
            self._shared.counters.bytes_moved += moved
            assert incoming.first_token is not None
            return ReceivedKv(
                first_token=incoming.first_token,
                tokens=offer.tokens,
                bytes=moved,
                transfer_s=time.monotonic() - max(pulled_s, incoming.covered_s),
                admission_s=pulled_s - offered_s,
                offered_s=offered_s,
            )
        except TransferFailed as error:
            reason = error.message
            raise
        finally:
            self._forget(incoming, reason)
            await settle([incoming.guard.shut()])

    def offered(self, offer: pb.Offer) -> None:
        """Take an offer, also of a transfer that is not expected yet."""
        incoming = self._transfers.get(offer.transfer)
        if incoming is not None:
            incoming.take_offer(offer)
        elif offer.transfer in self._early or len(self._early) < self._shared.config.max_transfers:
            self._early[offer.transfer] = offer
        else:
            reason = "too many offers wait"
            self._send(cancel=pb.CancelTransfer(transfer=offer.transfer, reason=reason))

    def withdraw(self, withdraw: pb.Withdraw) -> None:
        """Fail the transfer, also if it is not expected yet: its KV will not come."""
        self._early.pop(withdraw.transfer, None)
        incoming = self._transfers.get(withdraw.transfer)
        if incoming is not None:
            fail(incoming.finished, Withdrawn(withdraw.reason))
        else:
            self._withdrawn.add(withdraw.transfer, withdraw.reason)

    def done(self, done: pb.Done) -> None:
        """Note that all of a transfer is announced; it fails if a part is missing."""
        incoming = self.under_way(done.transfer)
        if incoming is None:
            return
        planned = len(incoming.plan)
        if not incoming.whole or not incoming.next_part == done.frames == planned:
            error = TransferFailed(f"{incoming.next_part} of {planned} frames came")
            fail(incoming.finished, error)
            return
        incoming.first_token = done.first_token
        self.finish_if_complete(incoming)

    def finish_if_complete(self, incoming: IncomingTransfer) -> None:
        """Finish the transfer if all of it is in its blocks."""
        if incoming.complete:
            succeed(incoming.finished, incoming.bytes)
        elif incoming.void and incoming.first_token is not None:
            # Its Withdraw is on the way.
            fail(incoming.finished, Withdrawn("a frame came void: its sender has ended it"))

    def fail_all(self, link: str, reason: TransferFailed) -> None:
        """Fail all transfers: the link is over."""
        self._over = True
        kind = LinkRefused if isinstance(reason, LinkRefused) else LinkBroken
        for incoming in self._transfers.values():
            fail(incoming.finished, kind(f"link {link}: {reason.message}"))

    async def _admitted(self, incoming: IncomingTransfer, admit: Admit) -> tuple[pb.Offer, float]:
        """The offer that got blocks, and when it came; tries again if an early offer gets none."""
        offer = await unless_failed(_result(incoming.offered), incoming.finished)
        offered_s = time.monotonic()
        if not await self._admit(incoming, offer, admit):
            offer = await unless_failed(_result(incoming.complete_offer), incoming.finished)
            offered_s = time.monotonic()
            await self._admit(incoming, offer, admit)
        return offer, offered_s

    async def _admit(self, incoming: IncomingTransfer, offer: pb.Offer, admit: Admit) -> bool:
        """Wait for blocks, unless the transfer fails first; False if an early offer gets none."""
        layout = self._shared.cache.layout
        if offer.blocks != layout.blocks_for(offer.tokens):
            raise TransferFailed(f"{offer.tokens} tokens offered in {offer.blocks} blocks")
        first_token = None if offer.early else offer.first_token
        offered = OfferedKv(offer.tokens, offer.blocks, first_token)
        admitted = await unless_failed(_call(admit, offered), incoming.finished)
        if admitted is None and offer.early:
            return False
        blocks, generation = admitted or ([], 0)
        if len(blocks) != offer.blocks:
            raise Internal(f"{len(blocks)} blocks admitted for {offer.blocks} offered")
        incoming.blocks = tuple(blocks)
        incoming.generation = generation
        incoming.coverage = Coverage(len(layout.layers), len(blocks))
        return True

    def _pull(self, incoming: IncomingTransfer, offer: pb.Offer) -> None:
        incoming.borrowed = self._borrowed(offer)
        pull = pb.Pull(
            transfer=incoming.transfer,
            generation=incoming.generation,
            blocks=len(incoming.blocks),
            in_place=incoming.borrowed is not None,
        )
        self._send(pull=pull)

    def _borrowed(self, offer: pb.Offer) -> BorrowedBlocks | None:
        """The blocks that the offer lends, if this side can copy them."""
        borrowed, borrower = wire.borrowed_of(offer), self.borrower
        taken = borrowed and borrower and borrower.takes(borrowed, offer.blocks)
        return borrowed if taken else None

    def _expect(self, transfer: str) -> IncomingTransfer:
        if transfer in self._transfers:
            raise Internal(f"transfer {transfer} is received already")
        withdrawn = self._withdrawn.pop(transfer)
        if withdrawn is not None:
            raise Withdrawn(withdrawn)
        incoming = self._transfers[transfer] = IncomingTransfer(transfer)
        offer = self._early.pop(transfer, None)
        if offer is not None:
            incoming.take_offer(offer)
        return incoming

    def _forget(self, incoming: IncomingTransfer, reason: str) -> None:
        """End all writes of the transfer; tell the sender, unless the transfer is committed."""
        del self._transfers[incoming.transfer]
        # Ends the transfer for all readers of `ended`, the copy thread among them.
        incoming.finished.cancel()
        if not incoming.committed and not self._over:
            self._send(cancel=pb.CancelTransfer(transfer=incoming.transfer, reason=reason))


async def _result(future: asyncio.Future[T]) -> T:
    return await future


async def _call(admit: Admit, offered: OfferedKv) -> tuple[list[int], int] | None:
    return await admit(offered)
