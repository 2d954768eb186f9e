"""The state of one transfer on the sending side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kv_transfer.aio.waits import quietly
from kv_transfer.frames.block_copies import CopyGuard
from kv_transfer.frames.borrowed_blocks import BorrowedBlocks
from kv_transfer.frames.frame_plan import Coverage, FramePart


@dataclass(frozen=True, slots=True)
class OutgoingKv:
    """The KV of that many tokens: its blocks, and its receiver's replica id.

    Without a first token the KV is still computed; see `KvSender.begin`.
    """

    transfer: str
    receiver: str
    blocks: tuple[int, ...]
    tokens: int
    first_token: int | None


def _new_future() -> asyncio.Future[int]:
    return quietly(asyncio.get_running_loop().create_future())


class OutgoingTransfer:
    """offered ─Pull─▶ sending ─last Frames, Done─▶ announced ─Committed─▶ finished (or an error).

    `computed` runs ahead of `announced`, and `announced` ahead of the frames. Reads of the blocks
    go through `guard`. If the receiver pulled the transfer `in_place`, it copies the `borrowed`
    blocks itself: then each extent is one part, without frames.
    """

    def __init__(self, kv: OutgoingKv, layers: int) -> None:
        self.kv = kv
        self.first_token = kv.first_token
        self.finished: asyncio.Future[int] = _new_future()
        self.computed = Coverage(layers, len(kv.blocks))
        self.announced = Coverage(layers, len(kv.blocks))
        self.plan: list[FramePart] = []
        self.generation = 0
        self.pulled = False
        self.borrowed: BorrowedBlocks | None = None
        self.in_place = False
        self.queued = False
        self.done_sent = False
        self.next_part = 0
        self.parts_sent = 0
        self.guard = CopyGuard()
        if kv.first_token is not None:
            self.computed.reach(len(kv.blocks), layers)

    @property
    def ended(self) -> bool:
        """Whether the transfer has been committed or has failed."""
        return self.finished.done()

    @property
    def all_announced(self) -> bool:
        """Whether all its frames are announced, and its first token is known."""
        every = self.announced.whole and self.next_part == len(self.plan)
        return every and self.first_token is not None

    @property
    def committed(self) -> bool:
        """Whether the receiver has committed the transfer."""
        done = self.finished.done() and not self.finished.cancelled()
        return done and self.finished.exception() is None

    @property
    def bytes(self) -> int:
        """The bytes of all announced parts."""
        return sum(part.bytes for part in self.plan)
