"""A lane through memory that two processes of one host share: the receiver reads it in place.

The sender's staging lies in segments (`segments.py`). What passes between the two is a pipe each
way, with where to read and that it was read: it wakes whoever waits, and ends with its process.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections import OrderedDict
from functools import partial
from typing import Any

import torch

from kv_transfer.errors import LaneBroken
from kv_transfer.gloo import open_store_client
from kv_transfer.segments import Mapped, Place, Segment, segment_of, shared_tensor
from kv_transfer.transport import Arrived, LaneSpec, Receipt, Wait

_RECORD = struct.Struct("<?xxxiQQQQ")  # data or not, then a Place without its pid
_TAKEN = _RECORD.pack(False, 0, 0, 0, 0, 0)
_MAPPED_SEGMENTS = 16


class SharedMemoryLane:
    """One end; blocks until the other end has joined, or LaneBroken."""

    staging_device = torch.device("cpu")
    # One is read, one waits, one is gathered. More would not fit the processor's cache.
    ahead = 3

    def __init__(self, spec: LaneSpec) -> None:
        self._mapped: OrderedDict[int, Mapped] = OrderedDict()
        self._spare: list[torch.Tensor] = []
        self._broken: str | None = None
        self._closing = threading.Lock()
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC)
        self._inbox, entrance = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._open = {self._alarm, self._inbox}
        try:
            self._peer_pid, self._outbox = _meet(spec, entrance)
            self._open.add(self._outbox)
        except (OSError, RuntimeError, ValueError) as error:
            self.close()
            raise LaneBroken(f"shared memory join: {str(error).partition(chr(10))[0]}") from error
        finally:
            # Only the peer's end is left, so the inbox ends when the peer does.
            os.close(entrance)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Lane.send`: done when the receiver has read it.

        A buffer outside the segments of this process is copied into one first.
        """
        spare = None
        if segment_of(buffer) is None:
            spare = self._spare_of(buffer.numel())
            buffer = spare[: buffer.numel()].copy_(buffer)
        found = segment_of(buffer)
        assert found is not None
        segment, offset = found
        place = (segment.descriptor, segment.identity, segment.renew(), offset, buffer.numel())
        self._say(_RECORD.pack(True, *place))
        return partial(self._until_taken, segment, spare)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Lane.receive`; the staging is left alone."""
        if self._broken:
            raise LaneBroken(self._broken)
        return partial(self._borrow, size)

    def _until_taken(self, segment: Segment, spare: torch.Tensor | None, timeout_s: float) -> None:
        try:
            if self._hear(time.monotonic() + timeout_s, "send")[0]:
                raise self._break("both ends send")
        finally:
            # A receiver that comes too late sees by this that the bytes are not its own any more.
            segment.renew()
        if spare is not None:
            self._spare.append(spare)

    def _borrow(self, size: int, timeout_s: float) -> Arrived:
        is_data, *place = self._hear(time.monotonic() + timeout_s, "receive")
        if not is_data:
            raise self._break("an answer without a message")
        source = Place(self._peer_pid, *place)
        if source.size != size:
            raise self._break(f"{source.size} bytes sent, {size} expected")
        try:
            mapped = self._segment(source)
            return Arrived(mapped.view(source), partial(self._taken, mapped, source))
        except LaneBroken as error:
            raise self._break(error.message) from error

    def _taken(self, mapped: Mapped, source: Place) -> None:
        """On the thread that has read it."""
        try:
            mapped.check(source)
        except LaneBroken as error:
            raise self._break(error.message) from error
        self._say(_TAKEN)

    def abort(self) -> None:
        """End whatever waits on this side."""
        with self._closing:
            if self._alarm in self._open:
                os.eventfd_write(self._alarm, 1)

    def close(self) -> None:
        """Close the pipes, which ends the other side's waits too, and unmap what was read from."""
        with self._closing:
            self._broken = self._broken or "the shared memory lane is closed"
            while self._open:
                os.close(self._open.pop())
        self._mapped.clear()
        self._spare.clear()

    def _spare_of(self, size: int) -> torch.Tensor:
        """Shared memory of this lane's own, that large or larger."""
        spare = self._spare.pop() if self._spare else None
        return spare if spare is not None and spare.numel() >= size else shared_tensor(size)

    def _segment(self, place: Place) -> Mapped:
        mapped = self._mapped.pop(place.identity, None) or Mapped(place)
        self._mapped[place.identity] = mapped
        if len(self._mapped) > _MAPPED_SEGMENTS:
            self._mapped.popitem(last=False)
        return mapped

    def _say(self, record: bytes) -> None:
        try:
            # Held, because another thread may be closing what is written to.
            with self._closing:
                if self._broken:
                    raise LaneBroken(self._broken)
                os.write(self._outbox, record)
        except OSError as error:
            raise self._break(f"the peer is gone: {error.strerror}") from error

    def _hear(self, deadline: float, what: str) -> tuple[Any, ...]:
        """The peer's next record; LaneBroken when it is gone, or late, or this lane was aborted."""
        if self._broken:
            raise LaneBroken(self._broken)
        poll = select.poll()
        poll.register(self._inbox, select.POLLIN)
        poll.register(self._alarm, select.POLLIN)
        ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if self._alarm in ready:
            raise self._break("the lane was aborted")
        if self._inbox not in ready:
            raise self._break(f"{what} took too long")
        record = os.read(self._inbox, _RECORD.size)
        if len(record) != _RECORD.size:
            raise self._break("the peer is gone")
        return _RECORD.unpack(record)

    def _break(self, why: str) -> LaneBroken:
        self._broken = self._broken or f"shared memory: {why}"
        return LaneBroken(self._broken)


def _meet(spec: LaneSpec, entrance: int) -> tuple[int, int]:
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
