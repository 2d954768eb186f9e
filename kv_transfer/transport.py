"""A data lane: bytes between two members, in one order, without tags.

Both sides post `send` and `receive` in matching order with sizes agreed beforehand. Waiting for
them blocks, so it is done on a thread of the link's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

SENDER_RANK = 0
RECEIVER_RANK = 1


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """What one member needs to open its end.

    `prefix` names the lane in the sender's store and is never used twice. `host` is this member's
    own address, `device` where its KV lies.
    """

    transport: str
    store_host: str
    store_port: int
    prefix: str
    rank: int
    host: str
    device: torch.device
    timeout_s: float

    @property
    def peer(self) -> int:
        """The other member's rank."""
        return RECEIVER_RANK if self.rank == SENDER_RANK else SENDER_RANK


# Blocks for so many seconds at most, else LaneBroken.
Wait = Callable[[float], None]


class Lane(Protocol):
    """One end of an open lane. Every failure is a LaneBroken, after which only `close` is left.

    `send` and `receive` do not block. A few calls may be posted before the first is waited for;
    their waits are called once each, in the order in which they were posted, also after a failure.
    """

    @property
    def staging_device(self) -> torch.device:
        """Where the buffers given to `send` and `receive` must lie."""
        ...

    def send(self, buffer: torch.Tensor) -> Wait:
        """Post the buffer; the wait ends when all of it is on its way and it may be written again.

        Buffers that are posted at the same time do not share memory.
        """
        ...

    def receive(self, staging: torch.Tensor, size: int) -> Wait:
        """Post a receive; the wait ends when the first `size` bytes are filled.

        What is behind them may be written too.
        """
        ...

    def abort(self) -> None:
        """From any thread: end the call in progress where the transport can; never blocks."""
        ...

    def close(self) -> None:
        """Give everything back; called once, on the lane's own thread, after its last call."""
        ...


LaneOpener = Callable[[LaneSpec], Lane]
