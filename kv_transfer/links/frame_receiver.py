"""Writing into pool blocks, on the channel's thread: frames, and copies of borrowed blocks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from engine.errors import Internal, TandemError, TransferFailed
from kv_transfer.errors import ChannelBroken, ChecksumMismatch
from kv_transfer.frames.borrowed_blocks import Borrower
from kv_transfer.frames.checksum import inspect
from kv_transfer.frames.frame_plan import Extent, plan_frames
from kv_transfer.links.incoming_transfer import IncomingTransfer
from kv_transfer.links.shared import Shared
from protos import kv_transfer_pb2 as pb

# Whether the bytes were written, or the error of their transfer.
Outcome = bool | TandemError


def write(
    shared: Shared, incoming: IncomingTransfer | None, frame: pb.Frame, message: torch.Tensor
) -> Outcome:
    """Write the frame if it is intact; False if no transfer wants it."""
    # Checked here, because the transfer may have ended while the bytes were on their way.
    if incoming is None or incoming.ended:
        return False
    found = inspect(message)
    if found == "void":
        incoming.void = True
        return False
    if found == "corrupted":
        return ChecksumMismatch(f"transfer {incoming.transfer}: a frame arrived corrupted")
    try:
        return incoming.guard.copy(partial(_scatter, shared, incoming, frame, message))
    except Exception as error:  # any error of a copy ends the transfer
        return Internal(f"writing KV blocks: {error}")


def copy(shared: Shared, incoming: IncomingTransfer, extent: Extent, borrower: Borrower) -> Outcome:
    """Copy an extent of borrowed blocks; False if the transfer has ended.

    Raises ChannelBroken if they are read through a channel that broke.

    The extent is copied in pieces as large as frames. Other threads copy between the pieces, and a
    transfer that ends waits for one piece at most. A loan that has ended before is not read at all.
    """
    borrowed = incoming.borrowed
    assert borrowed is not None
    copying: AbstractContextManager[object] = nullcontext() if borrower.remote else shared.copying
    try:
        if incoming.ended:
            return False
        borrower.check(borrowed)
        for piece in plan_frames(shared.cache.layout, extent, shared.config.frame_bytes):
            positions = range(piece.block_start, piece.block_stop)
            layers = range(piece.layer_start, piece.layer_stop)
            call = partial(borrower.copy, borrowed, incoming.blocks, positions, layers)
            with copying:
                if incoming.ended or not incoming.guard.copy(call):
                    return False
        borrower.check(borrowed)
    except ChannelBroken:
        raise
    except TransferFailed as error:
        return error
    except Exception as error:  # any error of a copy ends the transfer
        return Internal(f"writing KV blocks: {error}")
    return True


def _scatter(
    shared: Shared, incoming: IncomingTransfer, frame: pb.Frame, message: torch.Tensor
) -> None:
    blocks = incoming.blocks[frame.block_start : frame.block_stop]
    data = message[: frame.bytes]
    with shared.copying:
        shared.cache.scatter(blocks, frame.layer_start, frame.layer_stop, data)
