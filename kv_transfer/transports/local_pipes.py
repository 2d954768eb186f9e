"""Two processes of one host telling each other of memory: a pipe each way, with records.

A pipe wakes whoever waits for it, and ends with its process.
"""

from __future__ import annotations

import os
import select
import threading

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.store import open_store_client
from kv_transfer.transports.transport import ChannelSpec


class Pipes:
    """One end; blocks until the other end has joined, or ChannelBroken, as after any failure.

    A record is `size` bytes, at most what a pipe takes in one piece.
    """

    def __init__(self, spec: ChannelSpec, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._broken: str | None = None
        self._closing = threading.Lock()
        self._inbox, entrance = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._alarm = os.eventfd(0, os.EFD_CLOEXEC)
        except OSError:
            os.close(self._inbox)
            os.close(entrance)
            raise
        self._open = {self._alarm, self._inbox}
        self._ready = select.poll()
        self._ready.register(self._inbox, select.POLLIN)
        self._ready.register(self._alarm, select.POLLIN)
        try:
            self.peer_pid, self._outbox = _meet(spec, entrance)
            self._open.add(self._outbox)
        except (OSError, RuntimeError, ValueError) as error:
            self.close()
            raise ChannelBroken(f"{name} join: {str(error).partition(chr(10))[0]}") from error
        finally:
            # Only the peer's end is left, so the inbox ends when the peer does.
            os.close(entrance)

    def check(self) -> None:
        """ChannelBroken once they are."""
        if self._broken:
            raise ChannelBroken(self._broken)

    def say(self, record: bytes) -> None:
        """Pass a record on, which wakes a peer that waits; ChannelBroken when it is gone."""
        try:
            # Held, because another thread may be closing what is written to.
            with self._closing:
                self.check()
                os.write(self._outbox, record)
        except OSError as error:
            raise self.broken(f"the peer is gone: {error.strerror}") from error

    def heard(self) -> bytes | None:
        """The peer's next record if it is here; ChannelBroken when it is gone."""
        self.check()
        try:
            record = os.read(self._inbox, self._size)
        except BlockingIOError:
            return None
        if len(record) != self._size:
            raise self.broken("the peer is gone")
        return record

    def hear(self, timeout_s: float, what: str) -> bytes:
        """The peer's next record; ChannelBroken when it is gone, late, or this end was aborted."""
        self.check()
        # Its alarm ends the poll; why is said then.
        self._ready.poll(1000 * timeout_s)
        record = self.heard()
        if record is None:
            raise self.broken(f"{what} took too long")
        return record

    def abort(self) -> None:
        """End whatever waits on this side, and what would be heard later."""
        with self._closing:
            self._broken = self._broken or f"{self._name}: the channel was aborted"
            if self._alarm in self._open:
                os.eventfd_write(self._alarm, 1)

    def close(self) -> None:
        """Close the pipes, which ends the other side's waits too."""
        with self._closing:
            self._broken = self._broken or f"the {self._name} channel is closed"
            while self._open:
                os.close(self._open.pop())

    def broken(self, why: str) -> ChannelBroken:
        """Break them, and what to raise."""
        self._broken = self._broken or f"{self._name}: {why}"
        return ChannelBroken(self._broken)


def _meet(spec: ChannelSpec, entrance: int) -> tuple[int, int]:
    """Exchange the pipes through the sender's store: the peer's process, and the way into it."""
    store = open_store_client(spec)
    store.set(f"{spec.rank}", f"{os.getpid()}/fd/{entrance}")
    address = store.get(f"{spec.peer}").decode()
    pid = int(address.partition("/")[0])
    outbox = os.open(f"/proc/{address}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        store.set(f"{spec.rank} is in", "")
        store.get(f"{spec.peer} is in")
    except BaseException:
        os.close(outbox)
        raise
    return pid, outbox
