"""The sender's end of one link: offers, and the frames of the transfers that were pulled.

A few staging buffers let the next frame be gathered while earlier frames are on the channel:

    Pull ─▶ (Credit) ─▶ Frames ─▶ gather + seal ─▶ channel.send …
                          └─ with the last ones ─▶ Done ─▶ (Committed)

A transfer that was pulled in place has no frames: the link announces each extent, and the receiver
copies it (`borrowed_blocks.py`). The channel's thread gathers and sends. The event loop is told of
several sent frames at a time.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from engine.errors import TransferFailed
from kv_transfer.aio.bounded_map import BoundedMap
from kv_transfer.aio.waits import fail, quietly, succeed
from kv_transfer.errors import LinkBroken
from kv_transfer.frames.frame_plan import (
    Extent,
    FramePart,
    extent_bytes,
    frame_size,
    plan_frames,
    whole_part,
)
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.frame_sender import gather_frame
from kv_transfer.links.link import GRACE_S, Link
from kv_transfer.links.outgoing_transfer import OutgoingTransfer
from kv_transfer.links.shared import Shared
from kv_transfer.transports.registry import channel_class
from kv_transfer.transports.transport import SENDER_RANK, ReadingChannel, Wait
from protos import kv_transfer_pb2 as pb


def _new_future() -> asyncio.Future[None]:
    return quietly(asyncio.get_running_loop().create_future())


class SenderLink(Link[pb.ReceiverMessage, pb.SenderMessage]):
    """Serves one receiver; `on_up` is called once, when the link can carry offers.

    `lends_memory` tells whether the receiver may copy out of this process's blocks: it maps them if
    `is_mapped`, and else reads them through the channel.
    """

    def __init__(
        self,
        shared: Shared,
        receiver: str,
        generation: int,
        transport: str,
        host: str,
        frame_bytes: int,
        on_up: Callable[[SenderLink], None],
    ) -> None:
        super().__init__(shared, f"to {receiver}", "receiver", wire.to_receiver)
        self.receiver = receiver
        self.generation = generation
        # Unique also after a restart of either side.
        self.channel = f"{receiver}/{generation}/{uuid.uuid4().hex}"
        self.transport = transport
        kind = channel_class(transport)
        self.is_mapped, self._is_read = kind.lends_memory, issubclass(kind, ReadingChannel)
        self.lends_memory = self.is_mapped or self._is_read
        self._host = host
        self._frame_bytes = frame_bytes
        self._on_up = on_up
        self._loop = asyncio.get_running_loop()
        self._transfers: dict[str, OutgoingTransfer] = {}
        self._cancelled: BoundedMap[str, str] = BoundedMap(shared.config.max_transfers)
        self._round_robin: deque[OutgoingTransfer] = deque()
        self._out_of_credit = asyncio.Event()
        self._sequence = 0
        self._credit = 0
        self._more_credit = _new_future()
        self._handlers = {
            "pull": self._pulled,
            "credit": self._credited,
            "committed": self._committed,
            "cancel": self._cancel,
        }

    @property
    def idle(self) -> bool:
        """Whether the link is up and no transfer is under way or on offer."""
        return self.up and not self._transfers and not self._round_robin

    def welcome(self, welcome: pb.Welcome) -> None:
        """Answer Hello; called before `run`."""
        self._send(welcome=welcome)

    def offer(self, outgoing: OutgoingTransfer) -> None:
        """Offer a transfer, also one whose KV is still computed; called while the link is up."""
        transfer = outgoing.kv.transfer
        # The receiver's cancel can overtake the offer.
        given_up = self._cancelled.pop(transfer)
        if given_up is not None:
            fail(outgoing.finished, TransferFailed(f"the receiver cancelled: {given_up}"))
            return
        self._transfers[transfer] = outgoing
        if self.lends_memory and outgoing.borrowed is None:
            outgoing.borrowed = self._shared.lender.lend(outgoing.kv.blocks, remote=self._is_read)
        self._send(offer=wire.offer_to_proto(outgoing, lends_memory=self.lends_memory))

    def progress(self, outgoing: OutgoingTransfer) -> None:
        """Announce what was computed since, in large parts while the prompt is not complete."""
        if self._transfers.get(outgoing.kv.transfer) is not outgoing or outgoing.ended:
            return
        if outgoing.pulled:
            large = self._frame_bytes // 2
            self._extend(outgoing, at_least=0 if outgoing.computed.whole else large)
            self._send_done(outgoing)
        elif outgoing.first_token is not None:
            self.offer(outgoing)

    def forget(self, outgoing: OutgoingTransfer) -> None:
        """Announce no more of this transfer."""
        if self._transfers.get(outgoing.kv.transfer) is outgoing:
            del self._transfers[outgoing.kv.transfer]

    def withdraw(self, transfer: str, reason: str) -> None:
        """Tell the receiver that this KV will not come; called while the link is up."""
        self._send(withdraw=pb.Withdraw(transfer=transfer, reason=reason))

    def _pulled(self, pull: pb.Pull) -> None:
        outgoing = self._transfers.get(pull.transfer)
        if outgoing is None or outgoing.ended:
            return  # its Withdraw is on the way
        if outgoing.pulled:
            raise LinkBroken(f"transfer {pull.transfer} was pulled twice")
        blocks = len(outgoing.kv.blocks)
        if pull.blocks != blocks:
            error = TransferFailed(f"{blocks} blocks offered, {pull.blocks} pulled")
            fail(outgoing.finished, error)
            return
        if pull.in_place and not (self.lends_memory and outgoing.borrowed):
            raise LinkBroken(f"transfer {pull.transfer} cannot be pulled in place")
        outgoing.pulled = True
        outgoing.in_place = pull.in_place
        outgoing.generation = pull.generation
        self.progress(outgoing)

    def _extend(self, outgoing: OutgoingTransfer, at_least: int) -> None:
        """Announce what is computed and not yet announced, if it has that many bytes."""
        if outgoing.announced.whole:
            return
        extents = outgoing.computed.beyond(outgoing.announced)
        layout = self._shared.cache.layout
        if sum(extent_bytes(layout, extent) for extent in extents) < max(1, at_least):
            return
        if outgoing.in_place:
            for extent in extents:
                self._announce_in_place(outgoing, extent)
            return
        for extent in extents:
            size = self._frame_bytes
            # Small frames gain nothing while other transfers are under way. Nor on a GPU, where the
            # wait for the device is the cost of a frame, and the copy next to nothing.
            if not self._round_robin and self._shared.cache.device.type == "cpu":
                size = frame_size(layout, extent, size)
            outgoing.announced.add(extent)
            outgoing.plan.extend(plan_frames(layout, extent, size))
            self._send(extent=wire.extent_to_proto(outgoing.kv.transfer, extent, size))
        if not outgoing.queued:
            outgoing.queued = True
            self._round_robin.append(outgoing)
        self._announce()

    def _announce_in_place(self, outgoing: OutgoingTransfer, extent: Extent) -> None:
        """Tell the receiver that it may copy this extent."""
        outgoing.announced.add(extent)
        outgoing.plan.append(whole_part(self._shared.cache.layout, extent))
        outgoing.next_part += 1
        self._send(extent=wire.extent_to_proto(outgoing.kv.transfer, extent, 0))

    def _credited(self, credit: pb.Credit) -> None:
        if credit.frames <= self._credit:
            raise LinkBroken(f"credit for {credit.frames} frames after {self._credit}")
        self._credit = credit.frames
        succeed(self._more_credit, None)
        self._more_credit = _new_future()
        self._announce()

    def _committed(self, committed: pb.Committed) -> None:
        outgoing = self._transfers.get(committed.transfer)
        if outgoing is None or outgoing.ended:
            return
        # Not `parts_sent`: this side's waits may end after the receiver has the frames.
        if not outgoing.done_sent:
            raise LinkBroken(f"transfer {committed.transfer} was committed before it was sent")
        self._shared.counters.bytes_moved += outgoing.bytes
        succeed(outgoing.finished, outgoing.bytes)

    def _cancel(self, cancel: pb.CancelTransfer) -> None:
        outgoing = self._transfers.pop(cancel.transfer, None)
        if outgoing is None:
            self._cancelled.add(cancel.transfer, cancel.reason)
            return
        fail(outgoing.finished, TransferFailed(f"the receiver cancelled: {cancel.reason}"))

    async def _serve(self) -> None:
        await self._join(self.transport, self.channel, SENDER_RANK, self._host)
        await self._meet_peer()
        self._on_up(self)
        while True:
            await self._out_of_credit.wait()
            # `_announce` may have cleared the event since, and then the receiver owes no credit.
            if self._out_of_credit.is_set():
                await self._credit_comes()

    async def _credit_comes(self) -> None:
        """Wait for credit; LinkBroken if none comes although nothing makes progress any more."""
        limit_s = self._shared.config.io_timeout_s + GRACE_S
        more = self._more_credit
        while not more.done():
            await asyncio.wait({more}, timeout=limit_s)
            stands = not self._in_flight or time.monotonic() - self._progress_s > limit_s
            if stands and not more.done():
                raise LinkBroken(
                    f"credit for frame {self._sequence} took longer than {limit_s:g} s"
                )

    def _announce(self) -> None:
        """Announce frames of the pulled transfers in rotation, as far as the credit goes.

        The channel's thread gathers and sends them in this order, also if their transfers end.
        """
        frames: list[pb.Frame] = []
        whole: list[OutgoingTransfer] = []
        while self._round_robin and self._sequence < self._credit:
            outgoing = self._round_robin.popleft()
            if outgoing.ended:
                continue
            frames.append(self._next_frame(outgoing))
            if not outgoing.queued:
                whole.append(outgoing)
        if self._round_robin:
            self._out_of_credit.set()
        else:
            self._out_of_credit.clear()
        if frames:
            self._shared.counters.frames_announced += len(frames)
            self._send(frames=pb.Frames(frames=frames))
        for outgoing in whole:
            self._send_done(outgoing)

    def _next_frame(self, outgoing: OutgoingTransfer) -> pb.Frame:
        part = outgoing.plan[outgoing.next_part]
        outgoing.next_part += 1
        outgoing.queued = outgoing.next_part < len(outgoing.plan)
        if outgoing.queued:
            self._round_robin.append(outgoing)
        post = partial(self._post_frame, outgoing, part)
        self._on_channel(post, partial(self._delivered, outgoing))
        frame = wire.frame_to_proto(self._sequence, outgoing.kv.transfer, outgoing.generation, part)
        self._sequence += 1
        return frame

    def _post_frame(
        self, outgoing: OutgoingTransfer, part: FramePart, buffer: torch.Tensor
    ) -> Wait:
        """Gather a frame and post it, on the channel's thread."""
        message = gather_frame(self._shared, outgoing, part, buffer, self._loop)
        return self._open_channel().send(message)

    def _delivered(self, outgoing: OutgoingTransfer, _: None) -> None:
        outgoing.parts_sent += 1
        self.progress(outgoing)

    def _send_done(self, outgoing: OutgoingTransfer) -> None:
        """Send Done once all is announced; the receiver counts the frames that arrive."""
        if outgoing.done_sent or outgoing.ended or not outgoing.all_announced:
            return
        outgoing.done_sent = True
        transfer, first_token = outgoing.kv.transfer, outgoing.first_token
        done = pb.Done(transfer=transfer, frames=len(outgoing.plan), first_token=first_token)
        self._send(done=done)

    def _failed(self, reason: TransferFailed) -> None:
        for outgoing in self._transfers.values():
            fail(outgoing.finished, LinkBroken(f"link {self.name}: {reason.message}"))
