"""The state of one transfer on the receiving side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kv_transfer.aio.waits import quietly, succeed
from kv_transfer.frames.block_copies import CopyGuard
from kv_transfer.frames.borrowed_blocks import BorrowedBlocks
from kv_transfer.frames.frame_plan import Coverage, FramePart
from protos import kv_transfer_pb2 as pb


@dataclass(frozen=True, slots=True)
class OfferedKv:
    """A sender's offer: the KV of that many tokens, in that many blocks.

    An early offer has no first token, because its prompt is still computed. An `Admit` without free
    blocks answers None to it at once, and is called again when the prompt is complete.
    """

    tokens: int
    blocks: int
    first_token: int | None


@dataclass(frozen=True, slots=True)
class ReceivedKv:
    """The result of a committed transfer. `admission_s` is the wait for blocks.

    `offered_s` is when the offer that got blocks came (monotonic).

    `transfer_s` is the time to the commit, from Pull or from the last extent's announcement,
    whichever is later.
    """

    first_token: int
    tokens: int
    bytes: int
    transfer_s: float
    admission_s: float
    offered_s: float


def _offer_future() -> asyncio.Future[pb.Offer]:
    return quietly(asyncio.get_running_loop().create_future())


def _bytes_future() -> asyncio.Future[int]:
    return quietly(asyncio.get_running_loop().create_future())


class IncomingTransfer:
    """expected ──Offer──▶ admitted ──Pull──▶ frames ──Done──▶ finished (bytes, or an error).

    `offered` has the first offer, and `complete_offer` the offer of the complete prompt. Writes to
    the blocks go through `guard`. With `borrowed`, each extent is one part, copied out of the
    sender's blocks.
    """

    def __init__(self, transfer: str) -> None:
        self.transfer = transfer
        self.offered: asyncio.Future[pb.Offer] = _offer_future()
        self.complete_offer: asyncio.Future[pb.Offer] = _offer_future()
        self.finished: asyncio.Future[int] = _bytes_future()
        self.blocks: tuple[int, ...] = ()
        self.generation = 0
        self.borrowed: BorrowedBlocks | None = None
        self.coverage: Coverage | None = None
        self.covered_s = 0.0
        self.plan: list[FramePart] = []
        self.next_part = 0
        self.landed = 0
        self.first_token: int | None = None
        self.committed = False
        self.void = False
        self.guard = CopyGuard()

    def take_offer(self, offer: pb.Offer) -> None:
        """Note an offer; a transfer may be offered twice, early and complete."""
        succeed(self.offered, offer)
        if not offer.early:
            succeed(self.complete_offer, offer)

    @property
    def ended(self) -> bool:
        """Whether writes to the transfer's blocks are over."""
        return self.finished.done()

    @property
    def whole(self) -> bool:
        """Whether all its extents are announced."""
        return self.coverage is not None and self.coverage.whole

    @property
    def complete(self) -> bool:
        """Whether all its KV is in its blocks, and its first token is known."""
        return self.first_token is not None and self.whole and self.landed == len(self.plan)

    @property
    def bytes(self) -> int:
        """The bytes of all announced parts."""
        return sum(part.bytes for part in self.plan)
