"""An agent of NIXL: registers memory, reads the memory of peers, and carries notifications.

An agent is the unit that can be stopped: neither the release of a read nor the removal of a peer
keeps the rest of a read from being written. So a read that does not end ends its agent.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import TandemError, TransferFailed
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.transport import Offsets

_BACKEND = "UCX"
# Tuned: the interval between two looks at a read or at notifications.
POLL_S = 0.00005
# Bound: the longest sleep of an agent's own thread, which otherwise would poll without a pause.
_PROGRESS_US = 1000

T = TypeVar("T")
# A kind of memory, and ranges of it, see `ranges`.
Ranges = tuple[str, NDArray[np.uint64]]


class ReadAgent:
    """An agent over UCX. Every failure is a ChannelBroken, unless a method says otherwise.

    `names` is NIXL's module. With `serves` the agent has a thread that answers reads; else it works
    only inside its calls.
    """

    def __init__(self, names: Any, *, serves: bool) -> None:
        self._names = names
        self._agent: Any = None
        self._backends: list[int] = []
        self._registered: list[Any] = []
        self._read: int | None = None
        self._call("start", partial(self._start, serves))

    def register(self, data: torch.Tensor) -> bytes:
        """Register the memory of a tensor; returns what a peer needs to read it."""
        return self._call("registration", lambda: self._register(data))

    def metadata(self) -> bytes:
        """All that a peer needs to reach this agent and what it has registered."""
        return self._call("metadata", lambda: bytes(self._agent.getLocalMD()))

    def meet(self, metadata: bytes) -> str:
        """Take a peer's metadata; returns the peer's name."""
        return self._call("metadata", lambda: str(self._agent.loadRemoteMD(metadata), "ascii"))

    def tell(self, peer: str, record: bytes) -> None:
        """Send a notification."""
        self._call("notification", lambda: self._agent.genNotif(peer, record, self._backends))

    def told(self, peer: str) -> list[bytes]:
        """The notifications that have come from a peer; also makes the agent's work go on."""
        found = self._call("notifications", lambda: self._agent.getNotifs({}, self._backends))
        return list(found.get(peer, ()))

    def read(
        self,
        peer: str,
        there: Ranges,
        here: Ranges,
        timeout_s: float,
        aborted: threading.Event,
    ) -> None:
        """Read ranges of a peer's memory into own memory.

        The agent ends with a read that fails or takes longer than `timeout_s`. After a read that
        cannot begin, which raises TransferFailed, the agent goes on.
        """
        try:
            self._call("read", lambda: self._prepare(peer, there, here))
        except ChannelBroken as error:
            raise TransferFailed(error.message) from None
        try:
            self._call("read", lambda: self._until_read(timeout_s, aborted))
        except ChannelBroken:
            self.close()
            raise

    def close(self) -> None:
        """End the agent: nothing of its reads is written any more. Idempotent."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        handle, self._read = self._read, None
        with suppress(Exception):
            if handle is not None:
                agent.releaseXferReq(handle)
        for listed in self._registered:
            with suppress(Exception):
                agent.deregisterMem(listed, self._backends)
        self._registered.clear()
        # The last reference, whose end closes the connections: no frame of a traceback may have it.
        del agent

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """The call's result; its errors become ChannelBroken, without their traceback."""
        failure: TandemError
        if self._agent is None and what != "start":
            raise ChannelBroken("NIXL: the agent has ended")
        try:
            return call()
        except TandemError as error:
            failure = error
        except Exception as error:  # NIXL's errors have no class in common
            failure = ChannelBroken(f"NIXL {what}: {error or type(error).__name__}")
        raise failure

    def _start(self, serves: bool) -> None:
        config = self._names.nixlAgentConfig()
        config.useProgThread, config.useListenThread = serves, False
        config.syncMode = self._names.NIXL_THREAD_SYNC_STRICT
        config.pthrDelay = _PROGRESS_US
        self._agent = self._names.nixlAgent(uuid.uuid4().hex, config)
        self._backends = [self._agent.createBackend(_BACKEND, {})]

    def _register(self, data: torch.Tensor) -> bytes:
        kind, address, device = place_of(data)
        what = [(address, data.numel() * data.element_size(), device, "")]
        listed = self._names.nixlRegDList(self._kind(kind), what)
        self._agent.registerMem(listed, self._backends)
        self._registered.append(listed)
        return bytes(self._agent.getLocalPartialMD(listed, True, self._backends))

    def _kind(self, kind: str) -> Any:
        return self._names.VRAM_SEG if kind == "VRAM" else self._names.DRAM_SEG

    def _prepare(self, peer: str, there: Ranges, here: Ranges) -> None:
        theirs, mine = (
            self._names.nixlXferDList(self._kind(kind), ranges) for kind, ranges in (there, here)
        )
        self._read = self._agent.createXferReq(
            self._names.NIXL_READ, mine, theirs, peer, "", self._backends
        )

    def _until_read(self, timeout_s: float, aborted: threading.Event) -> None:
        going, done = self._names.NIXL_IN_PROG, self._names.NIXL_SUCCESS
        deadline = time.monotonic() + timeout_s
        status = self._agent.postXferReq(self._read, "")
        while status == going:
            if aborted.is_set():
                raise ChannelBroken("NIXL: the read was aborted")
            if time.monotonic() > deadline:
                raise ChannelBroken(f"NIXL: a read took longer than {timeout_s:g} s")
            time.sleep(POLL_S)
            status = self._agent.getXferStatus(self._read)
        if status != done:
            raise ChannelBroken(f"NIXL: a read ended with {status}")
        self._agent.releaseXferReq(self._read)
        self._read = None


def place_of(data: torch.Tensor) -> tuple[str, int, int]:
    """Where a tensor lies, in NIXL's terms: the kind of memory, the address and the device."""
    if data.device.type == "cuda":
        return "VRAM", data.data_ptr(), data.device.index or 0
    return "DRAM", data.data_ptr(), 0


def ranges(addresses: Offsets, sizes: Offsets, device: int) -> NDArray[np.uint64]:
    """Ranges of memory as [n, 3]: address, size and device."""
    listed = np.empty((len(addresses), 3), np.uint64)
    listed[:, 0], listed[:, 1], listed[:, 2] = addresses, sizes, device
    return listed
