"""Messages of a channel over NIXL, for KV in frames.

A notification says where a buffer is. The peer reads the buffer, and says so by another one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from engine.errors import TransferFailed
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.nixl.agent import POLL_S, ReadAgent, ranges
from kv_transfer.transports.nixl.channel_end import ChannelEnd
from kv_transfer.transports.transport import Arrived, Receipt, Wait

# A notification: its kind, its number, and of a message the address, the size and the metadata.
_RECORD = struct.Struct("<cQQQ")
_HELLO, _HEARD, _MESSAGE, _TAKEN = b"h", b"H", b"m", b"t"


class NixlMessages:
    """One end's messages to and from a peer that its agent has met. See `Channel` for the rules."""

    def __init__(self, agent: ReadAgent, peer: str, end: ChannelEnd) -> None:
        self._agent = agent
        self._peer = peer
        self._end = end
        self._heard: set[bytes] = set()
        self._sent = self._received = 0
        # By number: messages that have not been received, and those that the peer has taken.
        self._arrived: dict[int, tuple[int, int, bytes]] = {}
        self._taken: set[int] = set()
        # By address: the buffers that are registered, which stay so as long as the channel, and
        # what the peer needs to read them until it has been told.
        self._buffers: dict[int, torch.Tensor] = {}
        self._untold: dict[int, bytes] = {}

    def greet(self, timeout_s: float) -> None:
        """Wait until both ends have heard of each other, or raise ChannelBroken.

        The peer works on a greeting only while it waits in this call, too.
        """
        self._tell(_HELLO)
        self._until(lambda: self._heard == {_HELLO, _HEARD}, "join", timeout_s)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        number, self._sent = self._sent, self._sent + 1
        metadata = self._untold.pop(self._registered(buffer), b"")
        self._tell(_MESSAGE, number, buffer.data_ptr(), buffer.numel(), metadata)
        return partial(self._until_taken, number)

    def receive(self, staging: torch.Tensor) -> Receipt:
        """See `Channel.receive`; the message fills all of `staging`."""
        number, self._received = self._received, self._received + 1
        return partial(self._arrival, number, staging)

    def drop_buffers(self) -> None:
        """Forget the buffers; called after the end of the agent."""
        self._buffers.clear()

    def _registered(self, buffer: torch.Tensor) -> int:
        """Register a buffer at its first use; returns the address of all of it."""
        storage = buffer.untyped_storage()
        address = storage.data_ptr()
        if address not in self._buffers:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._untold[address] = self._agent.register(whole)
            self._buffers[address] = whole
        return address

    def _until_taken(self, number: int, timeout_s: float) -> None:
        self._until(lambda: number in self._taken, "send", timeout_s)
        self._taken.remove(number)

    def _arrival(self, number: int, staging: torch.Tensor, timeout_s: float) -> Arrived:
        deadline = time.monotonic() + timeout_s
        self._until(lambda: number in self._arrived, "receive", timeout_s)
        try:
            self._read(*self._arrived.pop(number), staging, deadline)
        except TransferFailed as error:
            self._end.set(error.message)
            raise ChannelBroken(error.message) from None
        self._tell(_TAKEN, number)
        return Arrived(staging)

    def _read(
        self, address: int, size: int, metadata: bytes, staging: torch.Tensor, deadline: float
    ) -> None:
        if size != staging.numel():
            raise ChannelBroken(f"{size} bytes sent, {staging.numel()} expected")
        if metadata:
            self._agent.meet(metadata)
        self._registered(staging)
        theirs = "DRAM", ranges(np.array([address]), np.array([size]), 0)
        mine = "DRAM", ranges(np.array([staging.data_ptr()]), np.array([size]), 0)
        left_s = deadline - time.monotonic()
        self._agent.read(self._peer, theirs, mine, left_s, self._end.aborted)

    def _tell(
        self, kind: bytes, number: int = 0, address: int = 0, size: int = 0, metadata: bytes = b""
    ) -> None:
        self._agent.tell(self._peer, _RECORD.pack(kind, number, address, size) + metadata)

    def _until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Take notifications until it is so; ChannelBroken after `timeout_s`, and then for ever."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._end.check()
            for record in self._agent.told(self._peer):
                self._take(record)
            if ready():
                return
            if time.monotonic() > deadline:
                self._end.set(f"nixl {what} took longer than {timeout_s:g} s")
            else:
                time.sleep(POLL_S)

    def _take(self, record: bytes) -> None:
        kind, number, address, size = _RECORD.unpack_from(record)
        if kind == _MESSAGE:
            self._arrived[number] = (address, size, record[_RECORD.size :])
        elif kind == _TAKEN:
            self._taken.add(number)
        else:
            self._heard.add(kind)
            if kind == _HELLO:
                self._tell(_HEARD)
