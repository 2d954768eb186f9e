"""A channel through memory that two processes of one host share: the receiver reads it in place.

The sender's staging lies in segments (`engine/kv/shared_segments.py`). What passes between the two
is a
pipe each way, with where to read and that it was read: it wakes whoever waits, and ends with its
process.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from functools import partial

import torch

from engine.kv.shared_segments import SharedSegment, segment_of, shared_tensor
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.cpu_affinity import keep_off, not_on, own_core
from kv_transfer.transports.local_pipes import Pipes
from kv_transfer.transports.mapped_memory import MappedExtent, MappedMemory
from kv_transfer.transports.transport import Arrived, Channel, ChannelSpec, Needs, Receipt, Wait

# Data or not, the core of who says it, then a Place without its pid.
_RECORD = struct.Struct("<?xHiQQQQ")
_NOWHERE = (0, 0, 0, 0, 0)
_MAPPED_SEGMENTS = 16


class SharedMemoryChannel(Channel):
    """One end; blocks until the other end has joined, or ChannelBroken."""

    needs = Needs(one_host=True, device="cpu")
    lends_memory = True
    staging_device = torch.device("cpu")
    # One is read, one waits, one is gathered. More would not fit the processor's cache.
    ahead = 3

    def __init__(self, spec: ChannelSpec) -> None:
        self._mapped: OrderedDict[int, MappedMemory] = OrderedDict()
        self._spare: list[torch.Tensor] = []
        self._pipes = Pipes(spec, "shared memory", _RECORD.size)
        self._core = own_core()
        self._peer_core = -1

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`: done when the receiver has read it.

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
        self._pipes.say(_RECORD.pack(True, own_core(), *place))
        return partial(self._until_taken, segment, spare)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`; the staging is left alone."""
        self._pipes.check()
        return partial(self._borrow, size)

    def _until_taken(
        self, segment: SharedSegment, spare: torch.Tensor | None, timeout_s: float
    ) -> None:
        try:
            if self._hear(timeout_s, "send")[0]:
                raise self._pipes.broken("both ends send")
        finally:
            # A receiver that comes too late sees by this that the bytes are not its own any more.
            segment.renew()
        if spare is not None:
            self._spare.append(spare)

    def _borrow(self, size: int, timeout_s: float) -> Arrived:
        is_data, place = self._hear(timeout_s, "receive")
        if not is_data:
            raise self._pipes.broken("an answer without a message")
        source = MappedExtent(self._pipes.peer_pid, *place)
        if source.size != size:
            raise self._pipes.broken(f"{source.size} bytes sent, {size} expected")
        try:
            mapped = self._segment(source)
            return Arrived(mapped.view(source), partial(self._taken, mapped, source))
        except ChannelBroken as error:
            raise self._pipes.broken(error.message) from error

    def _taken(self, mapped: MappedMemory, source: MappedExtent) -> None:
        """On the thread that has read it."""
        try:
            mapped.check(source)
        except ChannelBroken as error:
            raise self._pipes.broken(error.message) from error
        self._pipes.say(_RECORD.pack(False, self._core, *_NOWHERE))

    def _hear(self, timeout_s: float, what: str) -> tuple[bool, list[int]]:
        """The peer's next record: data or not, and where. Both threads work from here on."""
        # Between two copies nothing of this is in the processor's cache, and each call counts.
        record = self._pipes.heard()
        if record is None:
            with not_on(self._peer_core):
                record = self._pipes.hear(timeout_s, what)
        is_data, self._peer_core, *place = _RECORD.unpack(record)
        self._core = keep_off(self._peer_core)
        return is_data, place

    def abort(self) -> None:
        """End whatever waits on this side."""
        self._pipes.abort()

    def close(self) -> None:
        """Close the pipes, which ends the other side's waits too, and unmap what was read from."""
        self._pipes.close()
        self._mapped.clear()
        self._spare.clear()

    def _spare_of(self, size: int) -> torch.Tensor:
        """Shared memory of this channel's own, that large or larger."""
        spare = self._spare.pop() if self._spare else None
        return spare if spare is not None and spare.numel() >= size else shared_tensor(size)

    def _segment(self, place: MappedExtent) -> MappedMemory:
        mapped = self._mapped.get(place.identity)
        if mapped is None:
            mapped = self._mapped[place.identity] = MappedMemory(place)
            if len(self._mapped) > _MAPPED_SEGMENTS:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(place.identity)
        return mapped
