"""Memory that a sender lends over NIXL: the lender's side, and the side that reads it in place."""

from __future__ import annotations

import base64
import threading
from typing import Any, ClassVar

import numpy as np
import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.nixl.agent import ReadAgent, place_of, ranges
from kv_transfer.transports.transport import Offsets, OwnMemory


def as_text(data: bytes) -> str:
    """Metadata of an agent as it stands in JSON."""
    return base64.b64encode(data).decode()


def as_bytes(text: str) -> bytes:
    """The reverse of `as_text`."""
    return base64.b64decode(text)


class LentMemory:
    """The memory that a sender lends, and the agent that serves its reads; shared by its links.

    `told` is what a `RemoteMemory` is made of, for JSON.
    """

    _all: ClassVar[dict[int, LentMemory]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, names: Any, memory: OwnMemory) -> None:
        self._users = 0
        self._agent = ReadAgent(names, serves=True)
        try:
            for data in (memory.cache, memory.words):
                self._agent.register(data)
            kind, address, device = place_of(memory.cache)
            self.told = {
                "agent": as_text(self._agent.metadata()),
                "cache": [kind, address, memory.cache.numel(), device],
                "words": [memory.words.data_ptr(), memory.words.numel()],
            }
        except BaseException:
            self._agent.close()
            raise

    @classmethod
    def of(cls, names: Any, memory: OwnMemory) -> LentMemory:
        """The agent for that memory, made by its first user; each user calls `leave` once."""
        with cls._lock:
            key = memory.cache.data_ptr()
            lent = cls._all.get(key) or cls._all.setdefault(key, cls(names, memory))
            lent._users += 1
            return lent

    def leave(self) -> None:
        """Have one user less; the end of the last user ends the agent."""
        with self._lock:
            self._users -= 1
            if not self._users:
                for key in [key for key, lent in self._all.items() if lent is self]:
                    del self._all[key]
                self._agent.close()


class RemoteMemory:
    """Reads of the memory that a peer lends, into own memory. `size` is that of its cache in bytes.

    Both calls raise what `ReadAgent.read` raises.
    """

    def __init__(
        self,
        agent: ReadAgent,
        told: dict[str, Any],
        memory: OwnMemory,
        aborted: threading.Event,
    ) -> None:
        kind, address, size, device = told["cache"]
        words, count = (int(number) for number in told["words"])
        if count != memory.words.numel():
            raise ChannelBroken(f"{count} words there, {memory.words.numel()} here")
        self.size = int(size)
        self._agent = agent
        self._aborted = aborted
        self._there = str(kind), int(address), int(device)
        self._words_there = words
        self._here = place_of(memory.cache)
        self._word = torch.zeros(1, dtype=torch.int64)
        self._lender = agent.meet(as_bytes(told["agent"]))
        for data in (memory.cache, self._word):
            agent.register(data)

    def read(self, there: Offsets, here: Offsets, sizes: Offsets, timeout_s: float) -> None:
        """See `ReadingChannel.read`."""
        kind, address, device = self._there
        theirs = kind, ranges(there + address, sizes, device)
        kind, address, device = self._here
        mine = kind, ranges(here + address, sizes, device)
        self._agent.read(self._lender, theirs, mine, timeout_s, self._aborted)

    def read_word(self, number: int, timeout_s: float) -> int:
        """See `ReadingChannel.read_word`."""
        size = np.array([self._word.element_size()])
        theirs = "DRAM", ranges(self._words_there + number * size, size, 0)
        mine = "DRAM", ranges(np.array([self._word.data_ptr()]), size, 0)
        self._agent.read(self._lender, theirs, mine, timeout_s, self._aborted)
        return int(self._word[0])
