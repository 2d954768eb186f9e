"""Messages of the control stream, made and read in one place."""

from __future__ import annotations

from typing import Any, TypeVar

import grpc
import torch

from engine.kv.layout import KvLayout, LayerShape
from kv_transfer.frames.borrowed_blocks import BorrowedBlocks
from kv_transfer.frames.frame_plan import Extent, FramePart
from kv_transfer.transports.mapped_memory import MappedExtent
from kv_transfer.transports.same_host import Witness
from kv_transfer.transports.transport import RECEIVER_RANK, ChannelSpec
from protos import kv_transfer_pb2 as pb

# Counted up when what a link's messages mean changes, or how a transfer is cut into frames, or how
# pairs lie in a block, which are lent as they are.
PROTOCOL = 5

Message = TypeVar("Message", pb.SenderMessage, pb.ReceiverMessage)


def to_receiver(**message: Any) -> pb.SenderMessage:
    """A message of the sender, by the name of its kind."""
    return pb.SenderMessage(**message)


def to_sender(**message: Any) -> pb.ReceiverMessage:
    """A message of the receiver, by the name of its kind."""
    return pb.ReceiverMessage(**message)


def content(message: pb.SenderMessage | pb.ReceiverMessage) -> tuple[str, Any]:
    """The kind of a message and what is in it; an empty kind when it is one we do not know."""
    kind = message.WhichOneof("message")
    return (kind, getattr(message, kind)) if kind else ("", None)


def together(messages: list[Message]) -> Message:
    """One message of the stream that says all of these, in their order."""
    if len(messages) == 1:
        return messages[0]
    whole = type(messages[0])()
    whole.CopyFrom(messages[0])
    whole.more.extend(messages[1:])
    return whole


def apart(message: Message) -> list[Message]:
    """What a message of the stream says, in its order."""
    return [message, *message.more]


def layout_to_proto(layout: KvLayout) -> pb.Layout:
    """The layout as it goes into Hello."""
    shapes = [
        pb.LayerShape(kv_heads=shape.kv_heads, head_size=shape.head_size) for shape in layout.layers
    ]
    return pb.Layout(
        layers=shapes,
        block_tokens=layout.block_size,
        dtype=layout.dtype,
        model_identity=layout.model_identity,
    )


def layout_from_proto(message: pb.Layout) -> KvLayout:
    """The peer's layout."""
    return KvLayout(
        layers=tuple(LayerShape(shape.kv_heads, shape.head_size) for shape in message.layers),
        block_size=message.block_tokens,
        dtype=message.dtype,
        model_identity=message.model_identity,
    )


def witness_to_proto(witness: Witness) -> pb.Witness:
    """Where the receiver's process can be found, as it goes into Hello."""
    return pb.Witness(
        boot=witness.boot, pid=witness.pid, descriptor=witness.descriptor, nonce=witness.nonce
    )


def witness_from_proto(message: pb.Witness) -> Witness:
    """The peer's witness; an empty one where it sent none."""
    return Witness(message.boot, message.pid, message.descriptor, message.nonce)


def channel_spec_of(
    welcome: pb.Welcome, host: str, device: torch.device, timeout_s: float
) -> ChannelSpec:
    """The receiver's end of the channel that the sender chose."""
    return ChannelSpec(
        transport=welcome.transport,
        store_host=welcome.store_host,
        store_port=welcome.store_port,
        prefix=welcome.store_prefix,
        rank=RECEIVER_RANK,
        host=host,
        device=device,
        timeout_s=timeout_s,
    )


def cache_to_proto(place: MappedExtent, blocks: int) -> pb.SharedCache:
    """Where the sender's cache can be mapped, as it goes into Welcome."""
    return pb.SharedCache(
        pid=place.pid,
        descriptor=place.descriptor,
        identity=place.identity,
        generation=place.generation,
        bytes=place.size,
        blocks=blocks,
    )


def place_of(cache: pb.SharedCache) -> MappedExtent:
    """Where the sender says that its cache is."""
    return MappedExtent(
        cache.pid, cache.descriptor, cache.identity, cache.generation, 0, cache.bytes
    )


def borrowed_to_proto(loan: BorrowedBlocks) -> pb.Loan:
    """What is lent with an offer."""
    return pb.Loan(word=loan.word, number=loan.number, blocks=loan.blocks)


def borrowed_of(offer: pb.Offer) -> BorrowedBlocks | None:
    """What is lent with an offer, if anything is."""
    if not offer.HasField("loan"):
        return None
    return BorrowedBlocks(offer.loan.word, offer.loan.number, tuple(offer.loan.blocks))


def frame_to_proto(sequence: int, transfer: str, generation: int, part: FramePart) -> pb.Frame:
    """The announcement of one message on the data channel."""
    return pb.Frame(
        sequence=sequence,
        transfer=transfer,
        generation=generation,
        layer_start=part.layer_start,
        layer_stop=part.layer_stop,
        block_start=part.block_start,
        block_stop=part.block_stop,
        bytes=part.bytes,
    )


def extent_to_proto(transfer: str, extent: Extent, frame_bytes: int) -> pb.Extent:
    """The announcement of what is sent next of a transfer."""
    return pb.Extent(
        transfer=transfer,
        layer_start=extent.layer_start,
        layer_stop=extent.layer_stop,
        block_start=extent.block_start,
        block_stop=extent.block_stop,
        frame_bytes=frame_bytes,
    )


def extent_of(message: pb.Extent) -> Extent:
    """What the sender announced."""
    return Extent(message.layer_start, message.layer_stop, message.block_start, message.block_stop)


def part_of(frame: pb.Frame) -> FramePart:
    """What the announced message carries."""
    return FramePart(
        frame.layer_start, frame.layer_stop, frame.block_start, frame.block_stop, frame.bytes
    )


def end_to_none(message: Any) -> Any:
    """grpc.aio's end-of-stream mark as None."""
    return None if message is grpc.aio.EOF else message
