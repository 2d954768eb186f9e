"""A hand-over as the sender sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from kv_transfer.frames import FramePart
from kv_transfer.waits import quietly


@dataclass(frozen=True, slots=True)
class OutgoingKv:
    """KV that is complete: which blocks hold the KV of that many tokens, and for whom it is."""

    transfer: str
    receiver: str
    blocks: tuple[int, ...]
    tokens: int
    first_token: int


def _new_future() -> asyncio.Future[int]:
    return quietly(asyncio.get_running_loop().create_future())


@dataclass(slots=True, eq=False)
class Outgoing:
    """offered ──Pull──▶ sending ──last Sum──▶ sent ──Committed──▶ finished (bytes, or an error)."""

    kv: OutgoingKv
    finished: asyncio.Future[int] = field(default_factory=_new_future)
    plan: tuple[FramePart, ...] = ()
    generation: int = 0
    pulled: bool = False
    next_part: int = 0
    parts_sent: int = 0
    reading: asyncio.Future[Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether nobody wants it any more, or it is through."""
        return self.finished.done()

    @property
    def sent(self) -> bool:
        """Whether every frame of it has left."""
        return self.pulled and self.parts_sent == len(self.plan)

    @property
    def committed(self) -> bool:
        """Whether the receiver has all of it."""
        done = self.finished.done() and not self.finished.cancelled()
        return done and self.finished.exception() is None

    @property
    def bytes(self) -> int:
        """Of the whole transfer, once pulled."""
        return sum(part.bytes for part in self.plan)
