"""A transfer as the receiver sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from kv_transfer.frames import FramePart
from kv_transfer.waits import quietly
from protos import kv_transfer_pb2 as pb


@dataclass(frozen=True, slots=True)
class OfferedKv:
    """What a sender offers: the KV of that many tokens, in that many blocks."""

    tokens: int
    blocks: int
    first_token: int


@dataclass(frozen=True, slots=True)
class ReceivedKv:
    """What has arrived. `transfer_s` is from Pull to commit, `admission_s` the wait for blocks."""

    first_token: int
    tokens: int
    bytes: int
    transfer_s: float
    admission_s: float


def _offer_future() -> asyncio.Future[pb.Offer]:
    return quietly(asyncio.get_running_loop().create_future())


def _bytes_future() -> asyncio.Future[int]:
    return quietly(asyncio.get_running_loop().create_future())


@dataclass(slots=True, eq=False)
class Incoming:
    """expected ──Offer──▶ admitted ──Pull──▶ frames ──Done──▶ finished (bytes, or an error)."""

    transfer: str
    offered: asyncio.Future[pb.Offer] = field(default_factory=_offer_future)
    finished: asyncio.Future[int] = field(default_factory=_bytes_future)
    blocks: tuple[int, ...] = ()
    generation: int = 0
    plan: tuple[FramePart, ...] = ()
    next_part: int = 0
    landed: int = 0
    done: bool = False
    committed: bool = False
    writing: list[asyncio.Future[Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether its blocks may no longer be written."""
        return self.finished.done()

    @property
    def complete(self) -> bool:
        """Whether all of it is in its blocks."""
        return self.done and self.landed == len(self.plan)

    @property
    def bytes(self) -> int:
        """Of the whole transfer, once pulled."""
        return sum(part.bytes for part in self.plan)
