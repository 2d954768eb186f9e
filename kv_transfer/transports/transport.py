"""A data channel: bytes between two members, in one order, without tags.

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
class ChannelSpec:
    """What one member needs to open its end.

    `prefix` names the channel in the sender's store and is never used twice. `host` is this
    member's own address, `device` where its KV lies.
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


def _nobody_waits() -> None:
    """What a channel of copies has to be told."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message: in the staging that was given to `receive`, or in memory that its sender lends.

    `taken` is called once, when nobody reads it any more, on any thread but in the order of the
    messages. ChannelBroken: it has changed meanwhile, and what was made of it is worth nothing.
    """

    data: torch.Tensor
    taken: Callable[[], None] = _nobody_waits


# Both block for so many seconds at most, else ChannelBroken.
Wait = Callable[[float], None]
Receipt = Callable[[float], Arrived]


class Channel(Protocol):
    """One end of an open channel. Every failure is a ChannelBroken, after which only `close` is
    left.

    `send` and `receive` do not block. A few calls may be posted before the first is waited for;
    their waits are called once each, in the order in which they were posted, also after a failure.
    """

    @property
    def staging_device(self) -> torch.device:
        """Where the buffers given to `send` and `receive` must lie."""
        ...

    @property
    def ahead(self) -> int:
        """How many messages are best posted at a time."""
        ...

    def send(self, buffer: torch.Tensor) -> Wait:
        """Post the buffer; the wait ends when all of it is on its way and it may be written again.

        Buffers that are posted at the same time do not share memory.
        """
        ...

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """Post a receive; the wait ends when the message of `size` bytes is there.

        Any part of `staging` may be written.
        """
        ...

    def abort(self) -> None:
        """From any thread: end the call in progress where the transport can; never blocks."""
        ...

    def close(self) -> None:
        """Give everything back; called once, on the channel's own thread, after its last call."""
        ...


def after(wait: Wait, data: torch.Tensor) -> Receipt:
    """That message, once the wait for it has ended."""

    def receipt(timeout_s: float) -> Arrived:
        wait(timeout_s)
        return Arrived(data)

    return receipt


ChannelOpener = Callable[[ChannelSpec], Channel]
