"""A data lane: bytes between two members, in one order, without tags.

Both sides call `send` and `receive` in matching order with sizes agreed beforehand. The calls
block, so they run on a thread of the link's own.
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


class Lane(Protocol):
    """One end of an open lane. Every failure is a LaneBroken, after which only `close` is left."""

    @property
    def staging_device(self) -> torch.device:
        """Where the buffers given to `send` and `receive` must lie."""
        ...

    def send(self, buffer: torch.Tensor, timeout_s: float) -> None:
        """Return when the whole buffer is on its way and may be written again."""
        ...

    def receive(self, staging: torch.Tensor, size: int, timeout_s: float) -> None:
        """Return when the first `size` bytes are filled; what is behind them may be written too."""
        ...

    def abort(self) -> None:
        """From any thread: end the call in progress where the transport can; never blocks."""
        ...

    def close(self) -> None:
        """Give everything back; called once, on the lane's own thread, after its last call."""
        ...


LaneOpener = Callable[[LaneSpec], Lane]
