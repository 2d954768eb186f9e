"""Copying blocks into staging and sending them, on the channel's thread."""

from __future__ import annotations

import asyncio
from functools import partial

import torch

from engine.errors import Internal
from kv_transfer.aio.waits import fail
from kv_transfer.frames.checksum import SEAL_BYTES, seal
from kv_transfer.frames.frame_plan import FramePart
from kv_transfer.links.outgoing_transfer import OutgoingTransfer
from kv_transfer.links.shared import Shared


def gather_frame(
    shared: Shared,
    outgoing: OutgoingTransfer,
    part: FramePart,
    buffer: torch.Tensor,
    loop: asyncio.AbstractEventLoop,
) -> torch.Tensor:
    """The sealed message of a frame, in `buffer`.

    The message is void if the transfer has ended or its blocks cannot be read. In the second case
    the transfer fails on `loop`.
    """
    gathered = False
    message = buffer[: part.bytes + SEAL_BYTES]
    try:
        read = partial(_gather, shared, outgoing.kv.blocks, part, message)
        gathered = not outgoing.ended and outgoing.guard.copy(read)
    except Exception as error:  # whatever the error, the receiver expects a message
        # The failure must reach the loop before the receiver can report the void message.
        problem = Internal(f"reading KV blocks: {error}")
        loop.call_soon_threadsafe(fail, outgoing.finished, problem)
    seal(message, void=not gathered)
    return message


def _gather(
    shared: Shared, blocks: tuple[int, ...], part: FramePart, message: torch.Tensor
) -> None:
    wanted = blocks[part.block_start : part.block_stop]
    with shared.copying:
        shared.cache.gather(wanted, part.layer_start, part.layer_stop, message[: part.bytes])
