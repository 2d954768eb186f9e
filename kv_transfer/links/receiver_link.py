"""The receiver's end of one link: what it waits for, and landing frames in pool blocks.

    Frames ─▶ a staging buffer each ─▶ channel.receive posted ─▶ verify ─▶ scatter ─▶ (Credit)

From the buffer to the scatter it is the channel thread's; the event loop hears of frames that have
landed, some at a time, and at once of what may be the last of a transfer.

Every announced frame is received; one that is no longer wanted ends in its staging buffer. What is
lent is copied out of the sender's blocks on that thread, extent by extent (`loans.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import torch

from engine.errors import Internal, TandemError, TransferFailed
from kv_transfer.aio.bounded_map import BoundedMap
from kv_transfer.aio.waits import fail, quietly, settle, succeed, unless_failed, until
from kv_transfer.errors import ChannelBroken, ChecksumMismatch, LinkBroken, LinkRefused, Withdrawn
from kv_transfer.frames.borrowed_blocks import BlockBorrower, BorrowedBlocks
from kv_transfer.frames.checksum import SEAL_BYTES
from kv_transfer.frames.frame_plan import (
    Coverage,
    Extent,
    FramePart,
    in_one,
    largest_block,
    plan_frames,
)
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.frame_receiver import Outcome, copy, write
from kv_transfer.links.incoming_transfer import IncomingTransfer, OfferedKv, ReceivedKv
from kv_transfer.links.link import FRAMES_PER_BUFFER, Link, Shared
from kv_transfer.transports.same_host import own_witness
from kv_transfer.transports.selection import PROCESS, device_name
from protos import kv_transfer_pb2 as pb

_log = logging.getLogger(__name__)

T = TypeVar("T")
Admit = Callable[[OfferedKv], Awaitable[tuple[list[int], int] | None]]


class ReceiverLink(Link[pb.SenderMessage, pb.ReceiverMessage]):
    """Receives from one sender; transfers can be asked for from the start, also before it is up."""

    def __init__(
        self, shared: Shared, receiver: str, sender: str, host: str, generation: int
    ) -> None:
        super().__init__(shared, f"from {sender}", wire.to_sender(heartbeat=pb.Heartbeat()))
        self._host = host
        self._generation = generation
        self._frame_bytes = shared.config.frame_bytes
        self._transfers: dict[str, IncomingTransfer] = {}
        self._early: dict[str, pb.Offer] = {}
        self._withdrawn: BoundedMap[str, str] = BoundedMap(shared.config.max_transfers)
        loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[pb.Welcome] = quietly(loop.create_future())
        self._joined: asyncio.Future[None] = quietly(loop.create_future())
        self._sequence = 0
        self._credit = 0
        self._corrupted_in_a_row = 0
        self._borrower: BlockBorrower | None = None
        self._say_hello(receiver)

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything on this link."""
        return self.up and not self._transfers and not self._early

    async def receive(self, transfer: str, admit: Admit) -> ReceivedKv:
        """One transfer from offer to commit; when this has ended its blocks are not written."""
        incoming = self._expect(transfer)
        reason = "the receiver gave up"
        try:
            offer = await unless_failed(_result(incoming.offered), incoming.finished)
            offered_s = time.monotonic()
            if not await self._admit(incoming, offer, admit):
                offer = await unless_failed(_result(incoming.complete_offer), incoming.finished)
                offered_s = time.monotonic()
                await self._admit(incoming, offer, admit)
            pulled_s = time.monotonic()
            incoming.loan = self._borrowed(offer)
            pull = pb.Pull(
                transfer=transfer,
                generation=incoming.generation,
                blocks=len(incoming.blocks),
                in_place=incoming.loan is not None,
            )
            self._control.send(wire.to_sender(pull=pull))
            moved = await _result(incoming.finished)
            self._control.send(wire.to_sender(committed=pb.Committed(transfer=transfer)))
            incoming.committed = True
            self._shared.counters.bytes_moved += moved
            assert incoming.first_token is not None
            return ReceivedKv(
                first_token=incoming.first_token,
                tokens=offer.tokens,
                bytes=moved,
                transfer_s=time.monotonic() - max(pulled_s, incoming.covered_s),
                admission_s=pulled_s - offered_s,
            )
        except TransferFailed as error:
            reason = error.message
            raise
        finally:
            self._forget(incoming, reason)
            await settle([incoming.gate.shut()])

    async def _admit(self, incoming: IncomingTransfer, offer: pb.Offer, admit: Admit) -> bool:
        """Wait for blocks, or until it has failed; False where an early one gets none."""
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

    def _borrowed(self, offer: pb.Offer) -> BorrowedBlocks | None:
        """What the offer lends, if it can be copied here."""
        loan, borrower = wire.borrowed_of(offer), self._borrower
        taken = loan and borrower and borrower.takes(loan, offer.blocks)
        return loan if taken else None

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
        """Nothing is written for it from now on; unless it is through, the sender is told."""
        del self._transfers[incoming.transfer]
        # For whoever looks at `ended` from now on, the copy thread among them.
        incoming.finished.cancel()
        if not incoming.committed and not self.over:
            cancel = pb.CancelTransfer(transfer=incoming.transfer, reason=reason)
            self._control.send(wire.to_sender(cancel=cancel))

    def _say_hello(self, receiver: str) -> None:
        cache, config = self._shared.cache, self._shared.config
        hello = pb.Hello(
            receiver=receiver,
            protocol=wire.PROTOCOL,
            generation=self._generation,
            layout=wire.layout_to_proto(cache.layout),
            transport=config.transport,
            device=device_name(cache.device),
            process=PROCESS,
            frame_bytes=config.frame_bytes,
            witness=wire.witness_to_proto(own_witness()),
        )
        self._control.send(wire.to_sender(hello=hello))

    def _receive(self, message: pb.SenderMessage) -> None:
        match wire.content(message):
            case "heartbeat", _:
                pass
            case "welcome", welcome:
                succeed(self._welcome, welcome)
            case "refuse", refuse:
                raise LinkRefused(refuse.reason)
            case "joined", _:
                succeed(self._joined, None)
            case "offer", offer:
                self._offered(offer)
            case "extent", extent:
                self._extended(extent)
            case "frames", frames:
                for frame in frames.frames:
                    self._announced(frame)
                self._give_credit()
            case "done", done:
                self._done(done)
            case "withdraw", withdraw:
                self._withdraw(withdraw)
            case kind, _:
                raise LinkBroken(f"unexpected message {kind!r} from the sender")

    def _offered(self, offer: pb.Offer) -> None:
        incoming = self._transfers.get(offer.transfer)
        if incoming is not None:
            incoming.take_offer(offer)
        elif offer.transfer in self._early or len(self._early) < self._shared.config.max_transfers:
            self._early[offer.transfer] = offer
        else:
            cancel = pb.CancelTransfer(transfer=offer.transfer, reason="too many offers wait")
            self._control.send(wire.to_sender(cancel=cancel))

    def _withdraw(self, withdraw: pb.Withdraw) -> None:
        self._early.pop(withdraw.transfer, None)
        incoming = self._transfers.get(withdraw.transfer)
        if incoming is not None:
            fail(incoming.finished, Withdrawn(withdraw.reason))
        else:
            self._withdrawn.add(withdraw.transfer, withdraw.reason)

    def _extended(self, message: pb.Extent) -> None:
        """Plan the frames that will come next of this transfer, or copy what is lent."""
        incoming = self._transfers.get(message.transfer)
        if incoming is None or incoming.ended:
            return  # its frames go to scratch
        extent = wire.extent_of(message)
        if incoming.coverage is None or not incoming.coverage.add(extent):
            raise LinkBroken(f"transfer {message.transfer}: {extent} is out of place")
        layout = self._shared.cache.layout
        if incoming.loan is not None:
            self._take_over(incoming, extent)
        elif not largest_block(layout) <= message.frame_bytes <= self._frame_bytes:
            raise LinkBroken(f"transfer {message.transfer}: frames of {message.frame_bytes} bytes")
        else:
            incoming.plan += plan_frames(layout, extent, message.frame_bytes)
        if incoming.whole:
            incoming.covered_s = time.monotonic()

    def _take_over(self, incoming: IncomingTransfer, extent: Extent) -> None:
        """Copy what is lent, on the channel's thread."""
        incoming.plan.append(in_one(self._shared.cache.layout, extent))
        incoming.next_part += 1
        assert self._borrower is not None
        call = partial(copy, self._shared, incoming, extent, self._borrower)
        self._aside(call, partial(self._copied, incoming))

    def _announced(self, frame: pb.Frame) -> None:
        """Post what receives the frame, or break the link: no byte of it was taken in yet."""
        if frame.sequence != self._sequence:
            raise LinkBroken(f"frame {frame.sequence} announced, {self._sequence} expected")
        self._sequence += 1
        part = wire.part_of(frame)
        problem = self._problem(part)
        incoming = self._wanted(frame)
        if problem is None and incoming is not None:
            # A slice, because one frame too many must compare unequal and not raise.
            if incoming.plan[incoming.next_part : incoming.next_part + 1] != [part]:
                problem = "it is not the next of its transfer"
            incoming.next_part += 1
        if problem is not None:
            raise LinkBroken(f"frame {frame.sequence}: {problem}")
        if frame.sequence >= self._credit:
            raise LinkBroken(f"frame {frame.sequence} announced, credit for {self._credit}")
        last = incoming is not None and incoming.next_part == len(incoming.plan)
        # Posted and completed whatever becomes of its transfer: else the two sides of the channel
        # would no longer match.
        post = partial(self._take_in, incoming, frame)
        self._on_channel(post, partial(self._landed, incoming), urgent=last)

    def _give_credit(self) -> None:
        """Tell how many frames more may be announced, many at a time."""
        most = FRAMES_PER_BUFFER * self._shared.config.staging_buffers
        credit = self._sequence - self._on_the_way + most
        if credit - self._credit >= most // 2:
            self._credit = credit
            self._control.send(wire.to_sender(credit=pb.Credit(frames=credit)))

    def _problem(self, part: FramePart) -> str | None:
        """What is wrong with the size of a frame, whoever it is for."""
        cache = self._shared.cache
        if not 0 <= part.layer_start < part.layer_stop <= len(cache.layout.layers):
            return f"no layers {part.layer_start} to {part.layer_stop}"
        blocks = part.block_stop - part.block_start
        expected = blocks * cache.block_bytes(part.layer_start, part.layer_stop)
        if not 0 < expected == part.bytes <= self._frame_bytes:
            return f"{part.bytes} bytes, {expected} by the layout, at most {self._frame_bytes}"
        return None

    def _wanted(self, frame: pb.Frame) -> IncomingTransfer | None:
        """The transfer whose blocks the frame is for, unless it ended or is of another time."""
        incoming = self._transfers.get(frame.transfer)
        if incoming is None or incoming.ended or incoming.coverage is None:
            return None
        return incoming if incoming.generation == frame.generation else None

    def _done(self, done: pb.Done) -> None:
        incoming = self._transfers.get(done.transfer)
        if incoming is None or incoming.ended:
            return
        planned = len(incoming.plan)
        if not incoming.whole or not incoming.next_part == done.frames == planned:
            error = TransferFailed(f"{incoming.next_part} of {len(incoming.plan)} frames came")
            fail(incoming.finished, error)
            return
        incoming.first_token = done.first_token
        self._finish_if_complete(incoming)

    def _finish_if_complete(self, incoming: IncomingTransfer) -> None:
        if incoming.complete:
            succeed(incoming.finished, incoming.bytes)
        elif incoming.void and incoming.first_token is not None:
            # Its Withdraw is on the way.
            fail(incoming.finished, Withdrawn("a frame came void: its sender has ended it"))

    async def _serve(self) -> None:
        connect_s = self._shared.config.connect_timeout_s
        welcome = await until(self._welcome, connect_s, "the sender's welcome")
        if welcome.protocol != wire.PROTOCOL:
            raise LinkRefused(f"protocol: {wire.PROTOCOL} here, {welcome.protocol} there")
        if not 0 < welcome.frame_bytes <= self._frame_bytes:
            raise LinkBroken(f"welcome with frames of {welcome.frame_bytes} bytes")
        self._frame_bytes = welcome.frame_bytes
        device = self._shared.cache.device
        await self._join(wire.channel_spec_of(welcome, self._host, device, connect_s))
        if welcome.HasField("cache"):
            # On the channel's thread, as it takes milliseconds for each gigabyte.
            mapping = self._thread.submit(partial(self._map, welcome.cache))
            mapped, _ = await asyncio.wait({mapping}, timeout=connect_s)
            for done in mapped:
                done.result()
        self._control.send(wire.to_sender(joined=pb.Joined()))
        await until(self._joined, connect_s, "the sender's join")
        self._now_up()
        self._give_credit()

    def _map(self, cache: pb.SharedCache) -> None:
        """Map the sender's cache, on the channel's thread; until then its KV comes in frames."""
        try:
            self._borrower = BlockBorrower(self._shared.cache, wire.place_of(cache), cache.blocks)
        except ChannelBroken as error:
            _log.warning("link %s: nothing can be borrowed: %s", self.name, error.message)

    def _close_channel(self) -> None:
        # Behind all that copies: else a dead sender's memory stays for as long as this link.
        self._borrower = None
        super()._close_channel()

    def _take_in(
        self, incoming: IncomingTransfer | None, frame: pb.Frame, buffer: torch.Tensor
    ) -> Callable[[float], Outcome]:
        """On the channel's thread: post what receives the frame; the wait ends when it is
        written.
        """
        receipt = self._open_channel().receive(buffer, frame.bytes + SEAL_BYTES)

        def landed(timeout_s: float) -> Outcome:
            arrived = receipt(timeout_s)
            try:
                return write(self._shared, incoming, frame, arrived.data)
            finally:
                # ChannelBroken where the bytes did not stay what they were: then the blocks hold
                # anything, and as the link is over, so is the transfer whose blocks they are.
                arrived.taken()

        return landed

    def _copied(self, incoming: IncomingTransfer, outcome: Outcome) -> None:
        if isinstance(outcome, TandemError):
            fail(incoming.finished, outcome)
        else:
            incoming.landed += outcome
            self._finish_if_complete(incoming)

    def _landed(self, incoming: IncomingTransfer | None, outcome: Outcome) -> None:
        if isinstance(outcome, TandemError):
            assert incoming is not None
            self._spoiled(incoming, outcome)
        else:
            self._corrupted_in_a_row = 0
            self._shared.counters.frames_discarded += not outcome
            if incoming is not None:
                incoming.landed += outcome
                self._finish_if_complete(incoming)
        self._give_credit()

    def _spoiled(self, incoming: IncomingTransfer, error: TandemError) -> None:
        fail(incoming.finished, error)
        if not isinstance(error, ChecksumMismatch):
            return
        self._shared.counters.checksum_errors += 1
        self._corrupted_in_a_row += 1
        if self._corrupted_in_a_row > 1:
            raise LinkBroken("two frames in a row arrived corrupted: the channel is out of order")

    def _failed(self, reason: TransferFailed) -> None:
        why = f"link {self.name}: {reason.message}"
        kind = LinkRefused if isinstance(reason, LinkRefused) else LinkBroken
        for incoming in self._transfers.values():
            fail(incoming.finished, kind(why))


async def _result(future: asyncio.Future[T]) -> T:
    return await future


async def _call(admit: Admit, offered: OfferedKv) -> tuple[list[int], int] | None:
    return await admit(offered)
