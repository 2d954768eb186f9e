"""A transfer as the receiver sees it."""

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
    """What a sender offers: the KV of that many tokens, in that many blocks.

    Without a first token the prompt is still being computed. Then, who has no blocks to give says
    None at once, and is asked again when it is complete.
    """

    tokens: int
    blocks: int
    first_token: int | None


@dataclass(frozen=True, slots=True)
class ReceivedKv:
    """What has arrived. `admission_s` is the wait for blocks.

    `transfer_s` is from Pull to commit, but no earlier than when the last of it was computed.
    """

    first_token: int
    tokens: int
    bytes: int
    transfer_s: float
    admission_s: float


def _offer_future() -> asyncio.Future[pb.Offer]:
    return quietly(asyncio.get_running_loop().create_future())


def _bytes_future() -> asyncio.Future[int]:
    return quietly(asyncio.get_running_loop().create_future())


class IncomingTransfer:
    """expected ──Offer──▶ admitted ──Pull──▶ frames ──Done──▶ finished (bytes, or an error).

    `offered` has the first offer, `complete_offer` the one that is made when all is computed;
    blocks are written through the gate. With a `loan` they are copied extent by extent out of the
    sender's blocks, each in one part.
    """

    def __init__(self, transfer: str) -> None:
        self.transfer = transfer
        self.offered: asyncio.Future[pb.Offer] = _offer_future()
        self.complete_offer: asyncio.Future[pb.Offer] = _offer_future()
        self.finished: asyncio.Future[int] = _bytes_future()
        self.blocks: tuple[int, ...] = ()
        self.generation = 0
        self.loan: BorrowedBlocks | None = None
        self.coverage: Coverage | None = None
        self.covered_s = 0.0
        self.plan: list[FramePart] = []
        self.next_part = 0
        self.landed = 0
        self.first_token: int | None = None
        self.committed = False
        self.void = False
        self.gate = CopyGuard()

    def take_offer(self, offer: pb.Offer) -> None:
        """Note an offer; the same may come twice, early and complete."""
        succeed(self.offered, offer)
        if not offer.early:
            succeed(self.complete_offer, offer)

    @property
    def ended(self) -> bool:
        """Whether its blocks may no longer be written."""
        return self.finished.done()

    @property
    def whole(self) -> bool:
        """Whether all of it is announced."""
        return self.coverage is not None and self.coverage.whole

    @property
    def complete(self) -> bool:
        """Whether all of it is in its blocks."""
        return self.first_token is not None and self.whole and self.landed == len(self.plan)

    @property
    def bytes(self) -> int:
        """Of what was announced."""
        return sum(part.bytes for part in self.plan)
