"""The sender's end of one link: offers, and frames of the transfers that were pulled.

A few buffers let the next frame be gathered while the last ones are on the channel:

    Pull ─▶ (Credit) ─▶ Frames ─▶ gather + seal ─▶ channel.send …
                          └─ with the last ones ─▶ Done ─▶ (Committed)

What the receiver pulled in place has no frames: it hears of an extent and copies it (`loans.py`).
Gathering and sending are the channel thread's; the event loop hears of frames that have left, some
at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from engine.errors import Internal, TransferFailed
from kv_transfer.aio.bounded_map import BoundedMap
from kv_transfer.aio.waits import fail, quietly, succeed, until
from kv_transfer.errors import LinkBroken
from kv_transfer.frames.checksum import seal
from kv_transfer.frames.frame_plan import (
    Extent,
    FramePart,
    extent_bytes,
    frame_size,
    in_one,
    plan_frames,
)
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.link import GRACE_S, Link, Shared, message_in
from kv_transfer.links.outgoing_transfer import OutgoingTransfer
from kv_transfer.transports.registry import channel_class
from kv_transfer.transports.transport import ChannelSpec, Wait
from protos import kv_transfer_pb2 as pb

_log = logging.getLogger(__name__)


def _new_future() -> asyncio.Future[None]:
    return quietly(asyncio.get_running_loop().create_future())


class SenderLink(Link[pb.ReceiverMessage, pb.SenderMessage]):
    """Serves one receiver; `on_up` is called once when offers can be made.

    It `lends` where the receiver can read this process's memory.
    """

    def __init__(
        self,
        shared: Shared,
        receiver: str,
        generation: int,
        spec: ChannelSpec,
        frame_bytes: int,
        on_up: Callable[[SenderLink], None],
    ) -> None:
        super().__init__(shared, f"to {receiver}", wire.to_receiver(heartbeat=pb.Heartbeat()))
        self.receiver = receiver
        self.generation = generation
        self._spec = spec
        self.lends = channel_class(spec.transport).lends_memory
        self._frame_bytes = frame_bytes
        self._on_up = on_up
        self._loop = asyncio.get_running_loop()
        self._joined = _new_future()
        self._transfers: dict[str, OutgoingTransfer] = {}
        self._cancelled: BoundedMap[str, str] = BoundedMap(shared.config.max_transfers)
        self._turns: deque[OutgoingTransfer] = deque()
        self._out_of_credit = asyncio.Event()
        self._sequence = 0
        self._credit = 0
        self._more_credit = _new_future()

    def welcome(self, welcome: pb.Welcome) -> None:
        """Answer Hello; before `run`."""
        self._control.send(wire.to_receiver(welcome=welcome))

    def offer(self, outgoing: OutgoingTransfer) -> None:
        """Tell the receiver what waits or will wait for it; only while the link is up."""
        kv = outgoing.kv
        # A cancel can be faster than the offer it is about.
        given_up = self._cancelled.pop(kv.transfer)
        if given_up is not None:
            fail(outgoing.finished, TransferFailed(f"the receiver cancelled: {given_up}"))
            return
        self._transfers[kv.transfer] = outgoing
        if self.lends and outgoing.loan is None:
            outgoing.loan = self._shared.lender.lend(kv.blocks)
        lent = self.lends and outgoing.loan
        offer = pb.Offer(
            transfer=kv.transfer,
            tokens=kv.tokens,
            blocks=len(kv.blocks),
            first_token=outgoing.first_token or 0,
            early=outgoing.first_token is None,
            loan=wire.borrowed_to_proto(lent) if lent else None,
        )
        self._control.send(wire.to_receiver(offer=offer))

    def progress(self, outgoing: OutgoingTransfer) -> None:
        """More of it is computed: announce that, in large parts where others are under way."""
        if self._transfers.get(outgoing.kv.transfer) is not outgoing or outgoing.ended:
            return
        if outgoing.pulled:
            large = self._frame_bytes // 2
            self._extend(outgoing, at_least=0 if outgoing.computed.whole else large)
            self._say_done(outgoing)
        elif outgoing.first_token is not None:
            self.offer(outgoing)

    def forget(self, outgoing: OutgoingTransfer) -> None:
        """No new frame of it is made."""
        if self._transfers.get(outgoing.kv.transfer) is outgoing:
            del self._transfers[outgoing.kv.transfer]

    def withdraw(self, transfer: str, reason: str) -> None:
        """Tell the receiver that this KV will not come; only while the link is up."""
        withdraw = pb.Withdraw(transfer=transfer, reason=reason)
        self._control.send(wire.to_receiver(withdraw=withdraw))

    def _receive(self, message: pb.ReceiverMessage) -> None:
        match wire.content(message):
            case "heartbeat", _:
                pass
            case "joined", _:
                succeed(self._joined, None)
            case "pull", pull:
                self._pulled(pull)
            case "credit", credit:
                self._credited(credit)
            case "committed", committed:
                self._committed(committed)
            case "cancel", cancel:
                self._cancel(cancel)
            case kind, _:
                raise LinkBroken(f"unexpected message {kind!r} from the receiver")

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
        if pull.in_place and not (self.lends and outgoing.loan):
            raise LinkBroken(f"transfer {pull.transfer} was not lent")
        outgoing.pulled = True
        outgoing.in_place = pull.in_place
        outgoing.generation = pull.generation
        self.progress(outgoing)

    def _extend(self, outgoing: OutgoingTransfer, at_least: int) -> None:
        """Announce what is computed and was not announced, if it is that many bytes."""
        if outgoing.announced.whole:
            return
        extents = outgoing.computed.beyond(outgoing.announced)
        layout = self._shared.cache.layout
        if sum(extent_bytes(layout, extent) for extent in extents) < max(1, at_least):
            return
        if outgoing.in_place:
            for extent in extents:
                self._lend_on(outgoing, extent)
            return
        for extent in extents:
            size = self._frame_bytes
            # Where others are under way, nothing is gained by small frames. Nor on a GPU, where
            # a frame costs what waiting for the device does, and its copy next to nothing.
            if not self._turns and self._shared.cache.device.type == "cpu":
                size = frame_size(layout, extent, size)
            outgoing.announced.add(extent)
            outgoing.plan.extend(plan_frames(layout, extent, size))
            message = wire.extent_to_proto(outgoing.kv.transfer, extent, size)
            self._control.send(wire.to_receiver(extent=message))
        if not outgoing.in_turn:
            outgoing.in_turn = True
            self._turns.append(outgoing)
        self._announce()

    def _lend_on(self, outgoing: OutgoingTransfer, extent: Extent) -> None:
        """Tell the receiver that it can copy this extent, too."""
        outgoing.announced.add(extent)
        outgoing.plan.append(in_one(self._shared.cache.layout, extent))
        outgoing.next_part += 1
        message = wire.extent_to_proto(outgoing.kv.transfer, extent, 0)
        self._control.send(wire.to_receiver(extent=message))

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
        # The last frames' waits here may end after the receiver has landed them.
        if not outgoing.done_said:
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
        await self._join(self._spec)
        self._control.send(wire.to_receiver(joined=pb.Joined()))
        await until(self._joined, self._spec.timeout_s, "the receiver's join")
        self._now_up()
        self._on_up(self)
        while True:
            await self._out_of_credit.wait()
            # It may have been cleared since, and then nobody owes a word.
            if self._out_of_credit.is_set():
                await self._credit_comes()

    async def _credit_comes(self) -> None:
        """LinkBroken if none comes though nothing is on the way any more."""
        limit_s = self._shared.config.io_timeout_s + GRACE_S
        more = self._more_credit
        while not more.done():
            await asyncio.wait({more}, timeout=limit_s)
            rests = not self._on_the_way or time.monotonic() - self._moved_s > limit_s
            if rests and not more.done():
                raise LinkBroken(
                    f"credit for frame {self._sequence} took longer than {limit_s:g} s"
                )

    def _announce(self) -> None:
        """The pulled transfers take turns, frame by frame, as far as credit goes.

        They are gathered and sent in that order, whatever becomes of their transfers.
        """
        frames: list[pb.Frame] = []
        whole: list[OutgoingTransfer] = []
        while self._turns and self._sequence < self._credit:
            outgoing = self._turns.popleft()
            if outgoing.ended:
                continue
            frames.append(self._next_frame(outgoing))
            if not outgoing.in_turn:
                whole.append(outgoing)
        if self._turns:
            self._out_of_credit.set()
        else:
            self._out_of_credit.clear()
        if frames:
            self._control.send(wire.to_receiver(frames=pb.Frames(frames=frames)))
        for outgoing in whole:
            self._say_done(outgoing)

    def _next_frame(self, outgoing: OutgoingTransfer) -> pb.Frame:
        part = outgoing.plan[outgoing.next_part]
        outgoing.next_part += 1
        outgoing.in_turn = outgoing.next_part < len(outgoing.plan)
        if outgoing.in_turn:
            self._turns.append(outgoing)
        post = partial(self._gather_and_send, outgoing, part)
        self._on_channel(post, partial(self._delivered, outgoing))
        frame = wire.frame_to_proto(self._sequence, outgoing.kv.transfer, outgoing.generation, part)
        self._sequence += 1
        return frame

    def _gather_and_send(
        self, outgoing: OutgoingTransfer, part: FramePart, buffer: torch.Tensor
    ) -> Wait:
        """On the channel's thread. A frame that is not wanted any more, or cannot be read, is
        void.
        """
        gathered = False
        message = message_in(buffer, part.bytes)
        try:
            read = partial(self._gather, outgoing.kv.blocks, part, message)
            gathered = not outgoing.ended and outgoing.gate.copy(read)
        except Exception as error:  # whatever it is, the message is due
            # Told before the receiver can complain of the void.
            problem = Internal(f"reading KV blocks: {error}")
            self._loop.call_soon_threadsafe(fail, outgoing.finished, problem)
        seal(message, void=not gathered)
        return self._open_channel().send(message)

    def _gather(self, blocks: tuple[int, ...], part: FramePart, message: torch.Tensor) -> None:
        wanted = blocks[part.block_start : part.block_stop]
        with self._shared.copying:
            self._shared.cache.gather(
                wanted, part.layer_start, part.layer_stop, message[: part.bytes]
            )

    def _delivered(self, outgoing: OutgoingTransfer, _: None) -> None:
        outgoing.parts_sent += 1
        self.progress(outgoing)

    def _say_done(self, outgoing: OutgoingTransfer) -> None:
        """Once all of it is announced: the receiver knows by itself when it has landed."""
        if outgoing.done_said or outgoing.ended or not outgoing.all_announced:
            return
        outgoing.done_said = True
        done = pb.Done(
            transfer=outgoing.kv.transfer,
            frames=len(outgoing.plan),
            first_token=outgoing.first_token,
        )
        self._control.send(wire.to_receiver(done=done))

    def _failed(self, reason: TransferFailed) -> None:
        for outgoing in self._transfers.values():
            fail(outgoing.finished, LinkBroken(f"link {self.name}: {reason.message}"))
