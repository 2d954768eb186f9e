"""The receiver's end of one link: its handshake, and the frames that land in pool blocks.

    Frames ─▶ a staging buffer each ─▶ channel.receive posted ─▶ verify ─▶ scatter ─▶ (Credit)

The channel's thread does all from the buffer to the scatter. The event loop is told of several
landed frames at a time, and at once of the last frame of a transfer.

Every announced frame is received; a frame that no transfer wants any more is discarded. Borrowed
blocks are copied on the same thread, extent by extent (`borrowed_blocks.py`). `TransferReceiver`
has the transfers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from engine.errors import TandemError, TransferFailed
from kv_transfer.aio.waits import fail, quietly, succeed, until
from kv_transfer.errors import ChannelBroken, ChecksumMismatch, LinkBroken, LinkRefused
from kv_transfer.frames.borrowed_blocks import BlockBorrower
from kv_transfer.frames.checksum import SEAL_BYTES
from kv_transfer.frames.frame_plan import (
    Extent,
    FramePart,
    largest_block,
    plan_frames,
    whole_part,
)
from kv_transfer.frames.remote_blocks import RemoteBorrower
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.frame_receiver import Outcome, copy, write
from kv_transfer.links.incoming_transfer import IncomingTransfer, ReceivedKv
from kv_transfer.links.link import FRAMES_PER_BUFFER, Link
from kv_transfer.links.shared import Shared
from kv_transfer.links.transfer_receiver import Admit, TransferReceiver
from kv_transfer.transports.same_host import own_witness
from kv_transfer.transports.selection import PROCESS, device_name
from kv_transfer.transports.transport import RECEIVER_RANK, ReadingChannel
from protos import kv_transfer_pb2 as pb

_log = logging.getLogger(__name__)


class ReceiverLink(Link[pb.SenderMessage, pb.ReceiverMessage]):
    """Receives from one sender; `receive` may be called from the start, also before `up`."""

    def __init__(
        self, shared: Shared, receiver: str, sender: str, host: str, generation: int
    ) -> None:
        super().__init__(shared, f"from {sender}", "sender", wire.to_sender)
        self._host = host
        self._generation = generation
        self._frame_bytes = shared.config.frame_bytes
        self._transfers = TransferReceiver(shared, self._send)
        loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[pb.Welcome] = quietly(loop.create_future())
        self._sequence = 0
        self._credit = 0
        self._corrupted_in_a_row = 0
        self._handlers = {
            "welcome": partial(succeed, self._welcome),
            "refuse": self._refused,
            "offer": self._transfers.offered,
            "extent": self._extended,
            "frames": self._announced,
            "done": self._transfers.done,
            "withdraw": self._transfers.withdraw,
        }
        self._send_hello(receiver)

    @property
    def idle(self) -> bool:
        """Whether the link is up and no transfer is under way or on offer."""
        return self.up and self._transfers.idle

    async def receive(self, transfer: str, admit: Admit) -> ReceivedKv:
        """Pull one transfer; once this has ended, nothing writes to its blocks any more."""
        return await self._transfers.receive(transfer, admit)

    def _send_hello(self, receiver: str) -> None:
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
        self._send(hello=hello)

    async def _serve(self) -> None:
        connect_s = self._shared.config.connect_timeout_s
        welcome = await until(self._welcome, connect_s, "the sender's welcome")
        if welcome.protocol != wire.PROTOCOL:
            raise LinkRefused(f"protocol: {wire.PROTOCOL} here, {welcome.protocol} there")
        if not 0 < welcome.frame_bytes <= self._frame_bytes:
            raise LinkBroken(f"welcome with frames of {welcome.frame_bytes} bytes")
        self._frame_bytes = welcome.frame_bytes
        await self._join(welcome.transport, welcome.channel, RECEIVER_RANK, self._host)
        if welcome.HasField("cache"):
            # On the channel's thread, because mapping takes milliseconds for each gigabyte.
            mapping = self._thread.submit(partial(self._map, welcome.cache))
            mapped, _ = await asyncio.wait({mapping}, timeout=connect_s)
            for done in mapped:
                done.result()
        elif isinstance(channel := self._open_channel(), ReadingChannel):
            self._transfers.borrower = RemoteBorrower(
                self._shared.cache, channel, self._shared.config.io_timeout_s
            )
        await self._meet_peer()
        self._give_credit()

    def _map(self, cache: pb.SharedCache) -> None:
        """Map the sender's cache, on the channel's thread; without it the KV comes in frames."""
        try:
            self._transfers.borrower = BlockBorrower(
                self._shared.cache, wire.mapped_extent_of(cache), cache.blocks
            )
        except ChannelBroken as error:
            _log.warning("link %s: the sender's blocks cannot be mapped: %s", self.name, error)

    def _close_channel(self) -> None:
        # Behind all copies. Otherwise a dead sender's memory would stay until the link is freed.
        self._transfers.borrower = None
        super()._close_channel()

    def _refused(self, refuse: pb.RefuseLink) -> None:
        raise LinkRefused(refuse.reason)

    def _extended(self, message: pb.Extent) -> None:
        """Plan the frames of the transfer's next extent, or copy the extent from its blocks."""
        incoming = self._transfers.under_way(message.transfer)
        if incoming is None:
            return  # its frames are discarded
        extent = wire.extent_of(message)
        if incoming.coverage is None or not incoming.coverage.add(extent):
            raise LinkBroken(f"transfer {message.transfer}: {extent} is out of order")
        layout = self._shared.cache.layout
        if incoming.borrowed is not None:
            self._copy_in_place(incoming, extent)
        elif not largest_block(layout) <= message.frame_bytes <= self._frame_bytes:
            raise LinkBroken(f"transfer {message.transfer}: frames of {message.frame_bytes} bytes")
        else:
            incoming.plan += plan_frames(layout, extent, message.frame_bytes)
        if incoming.whole:
            incoming.covered_s = time.monotonic()

    def _copy_in_place(self, incoming: IncomingTransfer, extent: Extent) -> None:
        """Copy an extent of borrowed blocks, on the channel's thread."""
        incoming.plan.append(whole_part(self._shared.cache.layout, extent))
        incoming.next_part += 1
        borrower = self._transfers.borrower
        assert borrower is not None
        call = partial(copy, self._shared, incoming, extent, borrower)
        self._on_thread(call, partial(self._copied, incoming))

    def _copied(self, incoming: IncomingTransfer, outcome: Outcome) -> None:
        if isinstance(outcome, TandemError):
            fail(incoming.finished, outcome)
        else:
            incoming.landed += outcome
            self._transfers.finish_if_complete(incoming)

    def _announced(self, frames: pb.Frames) -> None:
        self._shared.counters.frames_announced += len(frames.frames)
        for frame in frames.frames:
            self._expect_frame(frame)
        self._give_credit()

    def _expect_frame(self, frame: pb.Frame) -> None:
        """Post the receive of the frame; LinkBroken, before any byte arrives, if it is invalid."""
        if frame.sequence != self._sequence:
            raise LinkBroken(f"frame {frame.sequence} announced, {self._sequence} expected")
        self._sequence += 1
        part = wire.part_of(frame)
        problem = self._problem(part)
        incoming = self._wanted(frame)
        if problem is None and incoming is not None:
            # A slice, because a frame behind the last one must compare unequal and not raise.
            if incoming.plan[incoming.next_part : incoming.next_part + 1] != [part]:
                problem = "it is not the next of its transfer"
            incoming.next_part += 1
        if problem is not None:
            raise LinkBroken(f"frame {frame.sequence}: {problem}")
        if frame.sequence >= self._credit:
            raise LinkBroken(f"frame {frame.sequence} announced, credit for {self._credit}")
        last = incoming is not None and incoming.next_part == len(incoming.plan)
        # Also for a transfer that has ended: the two sides of the channel must stay in order.
        post = partial(self._post_frame, incoming, frame)
        self._on_channel(post, partial(self._landed, incoming), urgent=last)

    def _post_frame(
        self, incoming: IncomingTransfer | None, frame: pb.Frame, buffer: torch.Tensor
    ) -> Callable[[float], Outcome]:
        """Post a frame's receive, on the channel's thread; the wait ends when it is written."""
        receipt = self._open_channel().receive(buffer, frame.bytes + SEAL_BYTES)

        def landed(timeout_s: float) -> Outcome:
            arrived = receipt(timeout_s)
            try:
                return write(self._shared, incoming, frame, arrived.data)
            finally:
                # ChannelBroken if the bytes changed meanwhile. The blocks then hold arbitrary
                # bytes, but the end of the link also ends the transfer.
                arrived.taken()

        return landed

    def _landed(self, incoming: IncomingTransfer | None, outcome: Outcome) -> None:
        if isinstance(outcome, TandemError):
            assert incoming is not None
            self._frame_failed(incoming, outcome)
        else:
            self._corrupted_in_a_row = 0
            self._shared.counters.frames_discarded += not outcome
            if incoming is not None:
                incoming.landed += outcome
                self._transfers.finish_if_complete(incoming)
        self._give_credit()

    def _frame_failed(self, incoming: IncomingTransfer, error: TandemError) -> None:
        fail(incoming.finished, error)
        if not isinstance(error, ChecksumMismatch):
            return
        self._shared.counters.checksum_errors += 1
        self._corrupted_in_a_row += 1
        if self._corrupted_in_a_row > 1:
            raise LinkBroken("two frames in a row arrived corrupted: the channel is out of order")

    def _give_credit(self) -> None:
        """Tell the sender how many frames it may announce, many at a time."""
        most = FRAMES_PER_BUFFER * self._shared.config.staging_buffers
        credit = self._sequence - self._in_flight + most
        if credit - self._credit >= most // 2:
            self._credit = credit
            self._send(credit=pb.Credit(frames=credit))

    def _problem(self, part: FramePart) -> str | None:
        """The fault in the size of a frame, for any transfer; None if it is valid."""
        cache = self._shared.cache
        if not 0 <= part.layer_start < part.layer_stop <= len(cache.layout.layers):
            return f"no layers {part.layer_start} to {part.layer_stop}"
        blocks = part.block_stop - part.block_start
        expected = blocks * cache.block_bytes(part.layer_start, part.layer_stop)
        if not 0 < expected == part.bytes <= self._frame_bytes:
            return f"{part.bytes} bytes, {expected} by the layout, at most {self._frame_bytes}"
        return None

    def _wanted(self, frame: pb.Frame) -> IncomingTransfer | None:
        """The frame's transfer, unless it has ended or is of another generation."""
        incoming = self._transfers.under_way(frame.transfer)
        if incoming is None or incoming.coverage is None:
            return None
        return incoming if incoming.generation == frame.generation else None

    def _failed(self, reason: TransferFailed) -> None:
        self._transfers.fail_all(self.name, reason)
