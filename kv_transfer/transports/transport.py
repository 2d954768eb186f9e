"""The interface of a data channel: messages between two members, in one order, without tags.

Both members post `send` and `receive` in matching order, with sizes that they agreed beforehand.
A wait blocks its thread, so each link waits on a thread of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

SENDER_RANK = 0
RECEIVER_RANK = 1
# Offsets and sizes of ranges in memory, in bytes.
Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a transport on both ends of a channel.

    `one_process`: both ends are in the same process. `one_host`: each end can open the other
    process's memory segments. `device`: where the KV of both ends must be.
    """

    one_process: bool = False
    one_host: bool = False
    device: Literal["any", "cpu", "one_gpu", "two_gpus"] = "any"


class ValueStore(Protocol):
    """The values of both members of a channel; a store of torch.distributed is one.

    Both calls raise RuntimeError.
    """

    def set(self, key: str, value: str, /) -> Any:
        """Store a value for both members."""
        ...

    def get(self, key: str, /) -> bytes:
        """The value, once either member has set it."""
        ...


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """The memory of one end that the other end may read, or that its reads write to.

    `cache` is flat uint8, all of the KV cache. `words` is int64, the words of the loans.
    """

    cache: torch.Tensor
    words: torch.Tensor


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """The arguments with which one member opens its end of a channel.

    `name` is the channel's and is never used twice. `host` is this member's own address. `device`
    is where this member's KV is. In `store` both members find each other's values. Only a
    `ReadingChannel` uses `memory`.
    """

    transport: str
    name: str
    rank: int
    host: str
    device: torch.device
    timeout_s: float
    store: ValueStore
    memory: OwnMemory | None = None

    @property
    def peer(self) -> int:
        """The other member's rank."""
        return RECEIVER_RANK if self.rank == SENDER_RANK else SENDER_RANK


def _no_acknowledgement() -> None:
    """The `taken` of a transport that copies: its sender does not wait for the reader."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message: in the staging buffer given to `receive`, or in memory that the sender owns.

    The reader calls `taken` once, after its last read, on any thread but in the order of the
    messages. `taken` raises ChannelBroken if the sender changed the memory during the read. The
    reader must then discard the bytes.
    """

    data: torch.Tensor
    taken: Callable[[], None] = _no_acknowledgement


# Both block for at most the given number of seconds, then raise ChannelBroken.
Wait = Callable[[float], None]
Receipt = Callable[[float], Arrived]


class Channel(ABC):
    """One end of an open channel.

    Every failure is a ChannelBroken. After a failure the caller may only call `close`.
    `send` and `receive` do not block. The caller may post up to `ahead` calls before it waits for
    the first. It calls each wait once, in the order of the posts, also after a failure.
    `staging_device` is where the buffers given to `send` and `receive` must be.
    """

    needs: ClassVar[Needs] = Needs()
    # Whether a receiver on this transport may map the sender's cache and copy blocks out of it.
    lends_memory: ClassVar[bool] = False
    # Whether the transport has run on the hardware that it is meant for.
    verified: ClassVar[bool] = True
    # What a channel takes of a GPU's memory beside staging buffers there; None: no staging there.
    device_bytes: ClassVar[int | None] = None
    staging_device: torch.device
    ahead: int

    @classmethod
    def unavailable(cls) -> str | None:
        """Why this process cannot open such a channel, whatever the pair; None if it can."""
        return None

    @abstractmethod
    def __init__(self, spec: ChannelSpec) -> None:
        """Join the other end; blocks until it has joined, or raises ChannelBroken."""

    @abstractmethod
    def send(self, buffer: torch.Tensor) -> Wait:
        """Post the buffer; the wait ends when the caller may write to the buffer again.

        Buffers that are posted at the same time do not share memory.
        """

    @abstractmethod
    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """Post a receive; the wait ends when the message of `size` bytes has arrived.

        The channel may write to any part of `staging`.
        """

    @abstractmethod
    def abort(self) -> None:
        """End the call in progress where the transport can; any thread may call it; no blocking."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources; called once, on the channel's own thread, after its last call."""


class ReadingChannel(Channel):
    """A channel whose receiver reads memory of the sender's process, on any host, in place.

    The sender's end lends its `OwnMemory`. Both calls block the channel's thread. Once a call has
    ended, in any way, none of its bytes is written any more.
    """

    # The size of the sender's cache in bytes; 0 if it lends none.
    remote_bytes: int

    @abstractmethod
    def read(self, there: Offsets, here: Offsets, sizes: Offsets, timeout_s: float) -> None:
        """Read ranges of the sender's cache into ranges of the own; offsets and sizes in bytes.

        Raises TransferFailed if this read cannot begin, and ChannelBroken if it failed.
        """

    @abstractmethod
    def read_word(self, number: int, timeout_s: float) -> int:
        """The value of one of the sender's words; raises as `read`."""


def after(wait: Wait, data: torch.Tensor) -> Receipt:
    """A receipt that returns `data` once `wait` has ended."""

    def receipt(timeout_s: float) -> Arrived:
        wait(timeout_s)
        return Arrived(data)

    return receipt


ChannelOpener = Callable[[ChannelSpec], Channel]
