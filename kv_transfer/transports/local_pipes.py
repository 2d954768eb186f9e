"""Records between two processes of one host: a pipe each way.

A record wakes the process that waits for it, and a pipe ends with its process.
"""

from __future__ import annotations

import os
import select
import threading

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.transport import ChannelSpec


class Pipes:
    """One end of the pipes; the constructor blocks until the other end has joined.

    A record has `size` bytes, at most the size of an atomic write to a pipe. Every failure breaks
    the pipes and is a ChannelBroken.
    """

    def __init__(self, spec: ChannelSpec, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._broken: str | None = None
        self._closing = threading.Lock()
        self._from_peer, entrance = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._abort_event = os.eventfd(0, os.EFD_CLOEXEC)
        except OSError:
            os.close(self._from_peer)
            os.close(entrance)
            raise
        self._open = {self._abort_event, self._from_peer}
        self._readable = select.poll()
        self._readable.register(self._from_peer, select.POLLIN)
        self._readable.register(self._abort_event, select.POLLIN)
        try:
            self.peer_pid, self._to_peer = _meet(spec, entrance)
            self._open.add(self._to_peer)
        except (OSError, RuntimeError, ValueError) as error:
            self.close()
            raise ChannelBroken(f"{name} join: {str(error).partition(chr(10))[0]}") from error
        finally:
            # Only the peer keeps the write end open, so the pipe ends when the peer does.
            os.close(entrance)

    def check(self) -> None:
        """Raise ChannelBroken once the pipes are broken."""
        if self._broken:
            raise ChannelBroken(self._broken)

    def send(self, record: bytes) -> None:
        """Send a record, which wakes a peer that waits; ChannelBroken if the peer is gone."""
        try:
            # The lock, because another thread may close the pipe meanwhile.
            with self._closing:
                self.check()
                os.write(self._to_peer, record)
        except OSError as error:
            raise self.broken(f"the peer is gone: {error.strerror}") from error

    def poll(self) -> bytes | None:
        """The peer's next record if it has arrived, or None; ChannelBroken if the peer is gone."""
        self.check()
        try:
            record = os.read(self._from_peer, self._size)
        except BlockingIOError:
            return None
        if len(record) != self._size:
            raise self.broken("the peer is gone")
        return record

    def receive(self, timeout_s: float, what: str) -> bytes:
        """Wait for the peer's next record; ChannelBroken if it is late, or the pipes are broken."""
        self.check()
        # `abort` and `close` end this wait, and `poll` then raises their reason.
        self._readable.poll(1000 * timeout_s)
        record = self.poll()
        if record is None:
            raise self.broken(f"{what} took too long")
        return record

    def abort(self) -> None:
        """End the wait on this side, and fail all later calls."""
        with self._closing:
            self._broken = self._broken or f"{self._name}: the channel was aborted"
            if self._abort_event in self._open:
                os.eventfd_write(self._abort_event, 1)

    def close(self) -> None:
        """Close the pipes, which ends the other side's waits too."""
        with self._closing:
            self._broken = self._broken or f"the {self._name} channel is closed"
            while self._open:
                os.close(self._open.pop())

    def broken(self, why: str) -> ChannelBroken:
        """Break the pipes; returns the error to raise."""
        self._broken = self._broken or f"{self._name}: {why}"
        return ChannelBroken(self._broken)


def _meet(spec: ChannelSpec, entrance: int) -> tuple[int, int]:
    """Exchange the pipes through the channel's store: the peer's pid, and the pipe to it."""
    store = spec.store
    store.set(f"{spec.rank}", f"{os.getpid()}/fd/{entrance}")
    address = store.get(f"{spec.peer}").decode()
    pid = int(address.partition("/")[0])
    to_peer = os.open(f"/proc/{address}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        store.set(f"{spec.rank} is in", "")
        store.get(f"{spec.peer} is in")
    except BaseException:
        os.close(to_peer)
        raise
    return pid, to_peer
