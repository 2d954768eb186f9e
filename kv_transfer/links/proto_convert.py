"""Conversion between the messages of the control stream and the values of this package."""

from __future__ import annotations

from typing import Any, TypeVar

from engine.kv.cache import KvFormat
from engine.kv.layout import KvLayout, LayerShape
from kv_transfer.frames.borrowed_blocks import BorrowedBlocks
from kv_transfer.frames.frame_plan import Extent, FramePart
from kv_transfer.links.outgoing_transfer import OutgoingTransfer
from kv_transfer.transports.mapped_memory import MappedExtent
from kv_transfer.transports.same_host import Witness
from protos import kv_transfer_pb2 as pb

# Raised when the meaning of a message changes, or the cut into frames, or the layout of pairs in a
# block (a receiver copies borrowed blocks as they are).
PROTOCOL = 6

Message = TypeVar("Message", pb.SenderMessage, pb.ReceiverMessage)


def to_receiver(**message: Any) -> pb.SenderMessage:
    """A message of the sender, by the name of its kind."""
    return pb.SenderMessage(**message)


def to_sender(**message: Any) -> pb.ReceiverMessage:
    """A message of the receiver, by the name of its kind."""
    return pb.ReceiverMessage(**message)


def content(message: pb.SenderMessage | pb.ReceiverMessage) -> tuple[str, Any]:
    """The kind of a message and its content; an unknown message has an empty kind."""
    kind = message.WhichOneof("message")
    return (kind, getattr(message, kind)) if kind else ("", None)


def combine(messages: list[Message]) -> Message:
    """One message of the stream that carries all of these, in their order."""
    if len(messages) == 1:
        return messages[0]
    whole = type(messages[0])()
    whole.CopyFrom(messages[0])
    whole.more.extend(messages[1:])
    return whole


def split(message: Message) -> list[Message]:
    """The messages that a message of the stream carries, in their order."""
    return [message, *message.more]


def layout_to_proto(layout: KvLayout) -> pb.Layout:
    """The layout, for Hello."""
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
    """The receiver's witness, for Hello."""
    return pb.Witness(
        boot=witness.boot, pid=witness.pid, descriptor=witness.descriptor, nonce=witness.nonce
    )


def witness_from_proto(message: pb.Witness) -> Witness:
    """The peer's witness; empty if the peer sent none."""
    return Witness(message.boot, message.pid, message.descriptor, message.nonce)


def cache_to_proto(extent: MappedExtent, blocks: int) -> pb.SharedCache:
    """The extent of the sender's cache that a receiver can map, for Welcome."""
    return pb.SharedCache(
        pid=extent.pid,
        descriptor=extent.descriptor,
        identity=extent.identity,
        generation=extent.generation,
        bytes=extent.size,
        blocks=blocks,
    )


def mapped_extent_of(cache: pb.SharedCache) -> MappedExtent:
    """The extent of the sender's cache that the receiver can map."""
    return MappedExtent(
        cache.pid, cache.descriptor, cache.identity, cache.generation, 0, cache.bytes
    )


def borrowed_to_proto(borrowed: BorrowedBlocks) -> pb.BorrowedBlocks:
    """Borrowed blocks, for an offer."""
    return pb.BorrowedBlocks(
        word=borrowed.word,
        number=borrowed.number,
        blocks=borrowed.blocks,
        plain=borrowed.order == "plain",
    )


def borrowed_of(offer: pb.Offer) -> BorrowedBlocks | None:
    """The blocks that an offer lends; None if it lends none."""
    if not offer.HasField("borrowed"):
        return None
    told = offer.borrowed
    order: KvFormat = "plain" if told.plain else "pairs"
    return BorrowedBlocks(told.word, told.number, tuple(told.blocks), order)


def offer_to_proto(outgoing: OutgoingTransfer, *, lends_memory: bool) -> pb.Offer:
    """The offer of a transfer, with its borrowed blocks if the link lends memory."""
    kv, borrowed = outgoing.kv, outgoing.borrowed
    return pb.Offer(
        transfer=kv.transfer,
        tokens=kv.tokens,
        blocks=len(kv.blocks),
        first_token=outgoing.first_token or 0,
        early=outgoing.first_token is None,
        borrowed=borrowed_to_proto(borrowed) if lends_memory and borrowed else None,
    )


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
    """The announcement of a transfer's next extent."""
    return pb.Extent(
        transfer=transfer,
        layer_start=extent.layer_start,
        layer_stop=extent.layer_stop,
        block_start=extent.block_start,
        block_stop=extent.block_stop,
        frame_bytes=frame_bytes,
    )


def extent_of(message: pb.Extent) -> Extent:
    """The extent that the sender announced."""
    return Extent(message.layer_start, message.layer_stop, message.block_start, message.block_stop)


def part_of(frame: pb.Frame) -> FramePart:
    """The part that the announced frame carries."""
    return FramePart(
        frame.layer_start, frame.layer_stop, frame.block_start, frame.block_stop, frame.bytes
    )
