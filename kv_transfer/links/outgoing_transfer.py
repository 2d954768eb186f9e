"""A hand-over as the sender sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kv_transfer.aio.waits import quietly
from kv_transfer.frames.block_copies import CopyGuard
from kv_transfer.frames.borrowed_blocks import BorrowedBlocks
from kv_transfer.frames.frame_plan import Coverage, FramePart


@dataclass(frozen=True, slots=True)
class OutgoingKv:
    """Which blocks hold the KV of that many tokens, and for whom it is.

    Without a first token it is still being computed; see `KvSender.begin`.
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

    `computed` runs ahead of `announced`, which runs ahead of the frames. Blocks are read through
    the gate, or by the receiver where they were lent to it and it pulled them `in_place`: then each
    extent is one part, and no frame is made of it.
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
        self.loan: BorrowedBlocks | None = None
        self.in_place = False
        self.in_turn = False
        self.done_said = False
        self.next_part = 0
        self.parts_sent = 0
        self.gate = CopyGuard()
        if kv.first_token is not None:
            self.computed.reach(len(kv.blocks), layers)

    @property
    def ended(self) -> bool:
        """Whether nobody wants it any more, or it is through."""
        return self.finished.done()

    @property
    def all_announced(self) -> bool:
        """Whether every frame of it is announced, and its first token is known."""
        every = self.announced.whole and self.next_part == len(self.plan)
        return every and self.first_token is not None

    @property
    def committed(self) -> bool:
        """Whether the receiver has all of it."""
        done = self.finished.done() and not self.finished.cancelled()
        return done and self.finished.exception() is None

    @property
    def bytes(self) -> int:
        """Of what was announced."""
        return sum(part.bytes for part in self.plan)
