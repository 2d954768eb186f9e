"""What comes is written into pool blocks, on the channel's thread: frames, and what is lent."""

from __future__ import annotations

from functools import partial

import torch

from engine.errors import Internal, TandemError
from kv_transfer.errors import ChecksumMismatch, Withdrawn
from kv_transfer.frames.borrowed_blocks import BlockBorrower
from kv_transfer.frames.checksum import inspect
from kv_transfer.frames.frame_plan import Extent, plan_frames
from kv_transfer.links.incoming_transfer import IncomingTransfer
from kv_transfer.links.link import Shared
from protos import kv_transfer_pb2 as pb

# Whether it was written, or why its transfer has to fail.
Outcome = bool | TandemError


def write(
    shared: Shared, incoming: IncomingTransfer | None, frame: pb.Frame, message: torch.Tensor
) -> Outcome:
    """Write the frame if it is right and wanted; False if it is not wanted."""
    # Asked here: it may have been given up while the bytes were on their way.
    if incoming is None or incoming.ended:
        return False
    found = inspect(message)
    if found == "void":
        incoming.void = True
        return False
    if found == "corrupted":
        return ChecksumMismatch(f"transfer {incoming.transfer}: a frame arrived corrupted")
    try:
        return incoming.gate.copy(partial(_scatter, shared, incoming, frame, message))
    except Exception as error:  # as anything in a copy, it is the transfer's end
        return Internal(f"writing KV blocks: {error}")


def copy(
    shared: Shared, incoming: IncomingTransfer, extent: Extent, borrower: BlockBorrower
) -> Outcome:
    """Copy an extent of what is lent; False if it is not wanted any more.

    In pieces as large as frames: others copy between them, and who gives up waits for one at most.
    """
    loan = incoming.loan
    assert loan is not None
    try:
        for piece in plan_frames(shared.cache.layout, extent, shared.config.frame_bytes):
            places = range(piece.block_start, piece.block_stop)
            layers = range(piece.layer_start, piece.layer_stop)
            call = partial(borrower.copy, loan, incoming.blocks, places, layers)
            with shared.copying:
                if incoming.ended or not incoming.gate.copy(call):
                    return False
        borrower.check(loan)
    except Withdrawn as error:
        return error
    except Exception as error:  # as anything in a copy, it is the transfer's end
        return Internal(f"writing KV blocks: {error}")
    return True


def _scatter(
    shared: Shared, incoming: IncomingTransfer, frame: pb.Frame, message: torch.Tensor
) -> None:
    blocks = incoming.blocks[frame.block_start : frame.block_stop]
    data = message[: frame.bytes]
    with shared.copying:
        shared.cache.scatter(blocks, frame.layer_start, frame.layer_stop, data)
