"""A channel through shared memory of one host: the receiver reads the sender's staging in place.

The sender's staging is in segments (`engine/kv/shared_segments.py`). A pipe each way carries
records: the sender's tell where to read, the receiver's tell that it has read. A record wakes the
peer that waits, and a pipe ends with its process.
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

# Whether the record is about data, the writer's core, then a MappedExtent without its pid.
_RECORD = struct.Struct("<?xHiQQQQ")
_NOWHERE = (0, 0, 0, 0, 0)
# Bound: segments of the peer that stay mapped; the least recently read one is unmapped first.
_MAPPED_SEGMENTS = 16


class SharedMemoryChannel(Channel):
    """One end of a channel between two processes of one host."""

    needs = Needs(one_host=True, device="cpu")
    lends_memory = True
    staging_device = torch.device("cpu")
    # Tuned: one message is read, one waits, one is gathered. More would overflow the CPU's cache.
    ahead = 3

    def __init__(self, spec: ChannelSpec) -> None:
        self._mapped: OrderedDict[int, MappedMemory] = OrderedDict()
        self._spare: list[torch.Tensor] = []
        self._pipes = Pipes(spec, "shared memory", _RECORD.size)
        self._core = own_core()
        self._peer_core = -1

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`: the wait ends when the receiver has read the buffer.

        A buffer outside this process's segments is first copied into one.
        """
        spare = None
        if segment_of(buffer) is None:
            spare = self._spare_of(buffer.numel())
            buffer = spare[: buffer.numel()].copy_(buffer)
        found = segment_of(buffer)
        assert found is not None
        segment, offset = found
        extent = (segment.descriptor, segment.identity, segment.renew(), offset, buffer.numel())
        self._pipes.send(_RECORD.pack(True, own_core(), *extent))
        return partial(self._until_taken, segment, spare)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`; the channel does not write to the staging."""
        self._pipes.check()
        return partial(self._arrival, size)

    def _until_taken(
        self, segment: SharedSegment, spare: torch.Tensor | None, timeout_s: float
    ) -> None:
        try:
            if self._next_record(timeout_s, "send")[0]:
                raise self._pipes.broken("both ends send")
        finally:
            # By this a receiver that reads too late finds that the bytes are no longer valid.
            segment.renew()
        if spare is not None:
            self._spare.append(spare)

    def _arrival(self, size: int, timeout_s: float) -> Arrived:
        is_data, extent = self._next_record(timeout_s, "receive")
        if not is_data:
            raise self._pipes.broken("an answer without a message")
        source = MappedExtent(self._pipes.peer_pid, *extent)
        if source.size != size:
            raise self._pipes.broken(f"{source.size} bytes sent, {size} expected")
        try:
            mapped = self._segment(source)
            return Arrived(mapped.view(source), partial(self._taken, mapped, source))
        except ChannelBroken as error:
            raise self._pipes.broken(error.message) from error

    def _taken(self, mapped: MappedMemory, source: MappedExtent) -> None:
        """Tell the sender, on the reader's thread; ChannelBroken if the bytes changed meanwhile."""
        try:
            mapped.check(source)
        except ChannelBroken as error:
            raise self._pipes.broken(error.message) from error
        self._pipes.send(_RECORD.pack(False, self._core, *_NOWHERE))

    def _next_record(self, timeout_s: float, what: str) -> tuple[bool, list[int]]:
        """The peer's next record: whether it is about data, and where the data is."""
        # A poll costs less than a wait, and the record of a busy peer is often here already.
        record = self._pipes.poll()
        if record is None:
            with not_on(self._peer_core):
                record = self._pipes.receive(timeout_s, what)
        is_data, self._peer_core, *extent = _RECORD.unpack(record)
        self._core = keep_off(self._peer_core)
        return is_data, extent

    def abort(self) -> None:
        """End all waits on this side."""
        self._pipes.abort()

    def close(self) -> None:
        """Close the pipes, which ends the other side's waits too, and unmap the peer's segments."""
        self._pipes.close()
        self._mapped.clear()
        self._spare.clear()

    def _spare_of(self, size: int) -> torch.Tensor:
        """A buffer of that size or larger, in this channel's own shared memory."""
        spare = self._spare.pop() if self._spare else None
        return spare if spare is not None and spare.numel() >= size else shared_tensor(size)

    def _segment(self, extent: MappedExtent) -> MappedMemory:
        mapped = self._mapped.get(extent.identity)
        if mapped is None:
            mapped = self._mapped[extent.identity] = MappedMemory(extent)
            if len(self._mapped) > _MAPPED_SEGMENTS:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(extent.identity)
        return mapped
