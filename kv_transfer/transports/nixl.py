"""A channel over NIXL: the receiver reads the sender's blocks in place, also on another host.

The cache of a sender is registered once, with an agent that serves the reads of all its links. Each
end of a link has an agent of its own. A receiver's agent registers the receiver's cache, and its
reads write straight into the blocks. KV in frames goes as messages: a notification says where a
buffer is, the peer reads it, and another notification says that it has.

A read that does not end ends its agent and its link, see `nixl_agent.py`.

UNVERIFIED over RDMA and with the memory of a GPU: it has run over TCP and the shared memory of UCX,
on CPUs of one host. The names are those of NIXL 1.5.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import struct
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch

from engine.errors import TandemError, TransferFailed
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.nixl_agent import POLL_S, ReadAgent, place_of, ranges
from kv_transfer.transports.transport import (
    SENDER_RANK,
    Arrived,
    ChannelSpec,
    Offsets,
    OwnMemory,
    ReadingChannel,
    Receipt,
    Wait,
)

_log = logging.getLogger(__name__)
# A notification: its kind, its number, and of a message the address, the size and the metadata.
_RECORD = struct.Struct("<cQQQ")
_HELLO, _HEARD, _MESSAGE, _TAKEN = b"h", b"H", b"m", b"t"


@cache
def bindings() -> Any:
    """NIXL's own names; ImportError where it is not installed."""
    return importlib.import_module("nixl")._bindings


@cache
def _warn_once() -> None:
    _log.warning(
        "the nixl transport is UNVERIFIED over RDMA and with the memory of a GPU; where UCX goes "
        "by TCP, whoever reaches its port can read and write the memory of this process"
    )


class _Served:
    """The memory that a sender lends, and the agent that serves its reads; shared by its links."""

    _all: ClassVar[dict[int, _Served]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, memory: OwnMemory) -> None:
        self.users = 0
        self.agent = ReadAgent(bindings(), serves=True)
        try:
            for data in (memory.cache, memory.words):
                self.agent.register(data)
            kind, address, device = place_of(memory.cache)
            self.told = {
                "agent": _text(self.agent.metadata()),
                "cache": [kind, address, memory.cache.numel(), device],
                "words": [memory.words.data_ptr(), memory.words.numel()],
            }
        except BaseException:
            self.agent.close()
            raise

    @classmethod
    def of(cls, memory: OwnMemory) -> _Served:
        """The agent for that memory, made by its first user; each user calls `leave` once."""
        with cls._lock:
            key = memory.cache.data_ptr()
            served = cls._all.get(key) or cls._all.setdefault(key, cls(memory))
            served.users += 1
            return served

    def leave(self) -> None:
        """Have one user less; the end of the last user ends the agent."""
        with self._lock:
            self.users -= 1
            if not self.users:
                for key in [key for key, served in self._all.items() if served is self]:
                    del self._all[key]
                self.agent.close()


class NixlChannel(ReadingChannel):
    """One end of a channel over NIXL."""

    verified = False
    staging_device = torch.device("cpu")
    ahead = 3

    @classmethod
    def unavailable(cls) -> str | None:
        """See `Channel.unavailable`."""
        try:
            bindings()
        except (ImportError, OSError, AttributeError) as error:
            return f"nixl cannot be loaded, install tandem-serve[nixl]: {error}"
        return None

    def __init__(self, spec: ChannelSpec) -> None:
        if (why := self.unavailable()) is not None:
            raise ChannelBroken(why)
        _warn_once()
        self.remote_bytes = 0
        self._aborted = threading.Event()
        self._failure: str | None = None
        self._heard: set[bytes] = set()
        self._sent = self._received = 0
        self._messages: dict[int, tuple[int, int, bytes]] = {}
        self._taken: set[int] = set()
        # By address: the buffers that are registered, which stay so as long as the channel, and
        # what the peer needs to read them until it has been told.
        self._buffers: dict[int, torch.Tensor] = {}
        self._untold: dict[int, bytes] = {}
        self._served: _Served | None = None
        self._agent = ReadAgent(bindings(), serves=False)
        try:
            self._join(spec)
        except (RuntimeError, ValueError, TypeError, KeyError, TandemError) as error:
            failure = f"nixl join: {error}"
            self.close()
        else:
            return
        raise ChannelBroken(failure)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        self._check()
        number, self._sent = self._sent, self._sent + 1
        metadata = self._untold.pop(self._registered(buffer), b"")
        record = _RECORD.pack(_MESSAGE, number, buffer.data_ptr(), buffer.numel())
        self._agent.tell(self._peer, record + metadata)
        return partial(self._until_taken, number)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        self._check()
        number, self._received = self._received, self._received + 1
        return partial(self._arrival, number, staging[:size])

    def read(self, there: Offsets, here: Offsets, sizes: Offsets, timeout_s: float) -> None:
        """See `ReadingChannel.read`."""
        self._check()
        kind, address, device = self._cache_there
        theirs = kind, ranges(there + address, sizes, device)
        kind, address, device = self._cache_here
        mine = kind, ranges(here + address, sizes, device)
        self._agent.read(self._lender, theirs, mine, timeout_s, self._aborted)

    def read_word(self, number: int, timeout_s: float) -> int:
        """See `ReadingChannel.read_word`."""
        self._check()
        size = np.array([self._word.element_size()])
        theirs = "DRAM", ranges(self._words_there + number * size, size, 0)
        mine = "DRAM", ranges(np.array([self._word.data_ptr()]), size, 0)
        self._agent.read(self._lender, theirs, mine, timeout_s, self._aborted)
        return int(self._word[0])

    def abort(self) -> None:
        """End the call in progress on this side."""
        self._aborted.set()

    def close(self) -> None:
        """End this end's agent, and with the last link the agent that serves the cache."""
        self._failure = self._failure or "the nixl channel is closed"
        self._agent.close()
        self._buffers.clear()
        served, self._served = self._served, None
        if served is not None:
            served.leave()

    def _join(self, spec: ChannelSpec) -> None:
        deadline = time.monotonic() + spec.timeout_s
        told: dict[str, Any] = {"agent": _text(self._agent.metadata())}
        if spec.memory is not None and spec.rank == SENDER_RANK:
            self._served = _Served.of(spec.memory)
            told["lent"] = self._served.told
        spec.store.set(f"{spec.rank} is here", json.dumps(told))
        theirs = json.loads(spec.store.get(f"{spec.peer} is here"))
        self._peer = self._agent.meet(_bytes(theirs["agent"]))
        self._agent.tell(self._peer, _RECORD.pack(_HELLO, 0, 0, 0))
        # Until the peer has heard: this end works on its hello only while it waits here.
        both = {_HELLO, _HEARD}
        self._until(lambda: self._heard == both, "join", deadline - time.monotonic())
        if spec.memory is not None and "lent" in theirs:
            self._reach(spec.memory, theirs["lent"], deadline)

    def _reach(self, memory: OwnMemory, lent: dict[str, Any], deadline: float) -> None:
        """Make ready to read what the peer lends; reads a word, which opens the connection."""
        self._lender = self._agent.meet(_bytes(lent["agent"]))
        kind, address, size, device = lent["cache"]
        self._cache_there = str(kind), int(address), int(device)
        self._words_there, words = (int(number) for number in lent["words"])
        self._cache_here = place_of(memory.cache)
        self._word = torch.zeros(1, dtype=torch.int64)
        self._agent.register(memory.cache)
        self._agent.register(self._word)
        if words != memory.words.numel():
            raise ChannelBroken(f"{words} words there, {memory.words.numel()} here")
        self.read_word(0, deadline - time.monotonic())
        self.remote_bytes = int(size)

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
        self._until(lambda: number in self._messages, "receive", timeout_s)
        address, size, metadata = self._messages.pop(number)
        try:
            if size != staging.numel():
                raise ChannelBroken(f"{size} bytes sent, {staging.numel()} expected")
            if metadata:
                self._agent.meet(metadata)
            self._registered(staging)
            theirs = "DRAM", ranges(np.array([address]), np.array([size]), 0)
            mine = "DRAM", ranges(np.array([staging.data_ptr()]), np.array([size]), 0)
            left_s = deadline - time.monotonic()
            self._agent.read(self._peer, theirs, mine, left_s, self._aborted)
        except TransferFailed as error:
            self._failure = error.message
            raise ChannelBroken(error.message) from None
        self._agent.tell(self._peer, _RECORD.pack(_TAKEN, number, 0, 0))
        return Arrived(staging)

    def _until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Take notifications until it is so; ChannelBroken after `timeout_s`, and then for ever."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._check()
            for record in self._agent.told(self._peer):
                self._take(record)
            if ready():
                return
            if time.monotonic() > deadline:
                self._failure = f"nixl {what} took longer than {timeout_s:g} s"
            else:
                time.sleep(POLL_S)

    def _take(self, record: bytes) -> None:
        kind, number, address, size = _RECORD.unpack_from(record)
        if kind == _MESSAGE:
            self._messages[number] = (address, size, record[_RECORD.size :])
        elif kind == _TAKEN:
            self._taken.add(number)
        else:
            self._heard.add(kind)
            if kind == _HELLO:
                self._agent.tell(self._peer, _RECORD.pack(_HEARD, 0, 0, 0))

    def _check(self) -> None:
        if self._failure is None and self._aborted.is_set():
            self._failure = "the nixl channel was aborted"
        if self._failure is not None:
            raise ChannelBroken(self._failure)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
