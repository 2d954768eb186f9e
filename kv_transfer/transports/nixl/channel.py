"""A channel over NIXL: the receiver reads the sender's blocks in place, also on another host.

The cache of a sender is registered once, with an agent that serves the reads of all its links. Each
end of a link has an agent of its own. A receiver's agent registers the receiver's cache, and its
reads write straight into the blocks. KV in frames goes as messages.

A read that does not end ends its agent and its link, see `agent.py`.

UNVERIFIED over RDMA and with the memory of a GPU: it has run over TCP and the shared memory of UCX,
on CPUs of one host. The names are those of NIXL 1.5.
"""

from __future__ import annotations

import importlib
import json
import logging
import time
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch

from engine.errors import TandemError
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.nixl.agent import ReadAgent
from kv_transfer.transports.nixl.channel_end import ChannelEnd
from kv_transfer.transports.nixl.lent_memory import LentMemory, RemoteMemory, as_bytes, as_text
from kv_transfer.transports.nixl.messages import NixlMessages
from kv_transfer.transports.transport import (
    SENDER_RANK,
    ChannelSpec,
    Offsets,
    ReadingChannel,
    Receipt,
    Wait,
)

_log = logging.getLogger(__name__)


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
        self._end = ChannelEnd()
        # Ends this end's agent, and with the last link the agent that serves the cache.
        self._opened = ExitStack()
        failure = None
        try:
            self._messages, self._remote = _joined(spec, self._end, self._opened)
        except (RuntimeError, ValueError, TypeError, KeyError, TandemError) as error:
            failure = f"nixl join: {error}"
        if failure is not None:
            self._opened.close()
            raise ChannelBroken(failure)
        self.remote_bytes = 0 if self._remote is None else self._remote.size

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        self._end.check()
        return self._messages.send(buffer)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        self._end.check()
        return self._messages.receive(staging[:size])

    def read(self, there: Offsets, here: Offsets, sizes: Offsets, timeout_s: float) -> None:
        """See `ReadingChannel.read`."""
        self._lent().read(there, here, sizes, timeout_s)

    def read_word(self, number: int, timeout_s: float) -> int:
        """See `ReadingChannel.read_word`."""
        return self._lent().read_word(number, timeout_s)

    def abort(self) -> None:
        """End the call in progress on this side."""
        self._end.aborted.set()

    def close(self) -> None:
        """See `Channel.close`."""
        self._end.set("the nixl channel is closed")
        self._opened.close()
        self._messages.drop_buffers()

    def _lent(self) -> RemoteMemory:
        self._end.check()
        if self._remote is None:
            raise ChannelBroken("the peer of this nixl channel lends no memory")
        return self._remote


def _joined(
    spec: ChannelSpec, end: ChannelEnd, opened: ExitStack
) -> tuple[NixlMessages, RemoteMemory | None]:
    """Meet the peer; `opened` ends what this opens.

    The first read of a word opens the connection to the lender.
    """
    deadline = time.monotonic() + spec.timeout_s
    names, told = bindings(), {}
    if spec.memory is not None and spec.rank == SENDER_RANK:
        lent = LentMemory.of(names, spec.memory)
        opened.callback(lent.leave)
        told["lent"] = lent.told
    agent = ReadAgent(names, serves=False)
    opened.callback(agent.close)
    spec.store.set(f"{spec.rank} is here", json.dumps(told | {"agent": as_text(agent.metadata())}))
    theirs: dict[str, Any] = json.loads(spec.store.get(f"{spec.peer} is here"))
    messages = NixlMessages(agent, agent.meet(as_bytes(theirs["agent"])), end)
    messages.greet(deadline - time.monotonic())
    remote = None
    if spec.memory is not None and "lent" in theirs:
        remote = RemoteMemory(agent, theirs["lent"], spec.memory, end.aborted)
        remote.read_word(0, deadline - time.monotonic())
    return messages, remote
