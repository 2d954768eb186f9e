"""A channel through the memory of one GPU: the receiver's process reads the sender's staging.

The sender exports its staging by a CUDA IPC handle (torch.UntypedStorage._share_cuda_, as
torch.multiprocessing does). Records in pipes tell the receiver where to read, and the sender that
the receiver has read.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.local_pipes import Pipes
from kv_transfer.transports.transport import Arrived, Channel, ChannelSpec, Needs, Receipt, Wait

# Bound: the size of every record in a pipe, with or without a handle.
_RECORD_BYTES = 2048
# The tensors that this process has exported, by handle: a process cannot open its own handles.
_exported_here: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()


class CudaIpcChannel(Channel):
    """One end of a channel on one GPU."""

    needs = Needs(one_host=True, device="one_gpu")
    device_bytes = 0
    ahead = 3

    def __init__(self, spec: ChannelSpec) -> None:
        if spec.device.type != "cuda" or not torch.cuda.is_available():
            raise ChannelBroken("cuda_ipc: KV does not lie on a GPU, or there is none")
        self.staging_device = spec.device
        # By the address of its memory: the number of an exported buffer, and its whole storage.
        self._exported: dict[int, tuple[int, torch.Tensor]] = {}
        self._imported: dict[int, torch.Tensor] = {}
        self._pipes = Pipes(spec, "cuda_ipc", _RECORD_BYTES)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`: the wait ends when the receiver has read the buffer."""
        torch.cuda.current_stream(self.staging_device).synchronize()
        storage = buffer.untyped_storage()
        message: dict[str, Any] = {"offset": buffer.storage_offset(), "size": buffer.numel()}
        try:
            number, _ = self._exported.get(storage.data_ptr()) or self._export(storage, message)
        except RuntimeError as error:
            raise self._pipes.broken(f"exporting memory: {error}") from error
        self._pipes.send(_record(number=number, **message))
        return self._until_taken

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`; the channel does not write to the staging."""
        self._pipes.check()
        return partial(self._arrival, size)

    def abort(self) -> None:
        """End all waits on this side."""
        self._pipes.abort()

    def close(self) -> None:
        """Close the pipes, which ends the other side's waits too, and drop the imported buffers."""
        self._pipes.close()
        self._imported.clear()
        self._exported.clear()

    def _export(self, storage: Any, message: dict[str, Any]) -> tuple[int, torch.Tensor]:
        whole = torch.empty(0, dtype=torch.uint8, device=self.staging_device).set_(storage)
        _, handle, size, offset, counter, slot, event, event_sync = storage._share_cuda_()
        shown = [handle.hex(), size, offset, counter.hex(), slot, event.hex(), event_sync]
        message["handle"] = shown
        _exported_here[f"{handle.hex()} {offset}"] = whole
        exported = self._exported[storage.data_ptr()] = (len(self._exported), whole)
        return exported

    def _until_taken(self, timeout_s: float) -> None:
        try:
            if _content(self._pipes.receive(timeout_s, "send")):
                raise self._pipes.broken("both ends send")
        except ChannelBroken:
            # The sender will reuse the buffer. A receiver that still reads finds the pipes closed.
            self._pipes.close()
            raise

    def _arrival(self, size: int, timeout_s: float) -> Arrived:
        record = _content(self._pipes.receive(timeout_s, "receive"))
        if not record:
            raise self._pipes.broken("an answer without a message")
        if record["size"] != size:
            raise self._pipes.broken(f"{record['size']} bytes sent, {size} expected")
        try:
            if "handle" in record:
                self._imported[record["number"]] = self._opened(*record["handle"])
            data = self._imported[record["number"]][record["offset"] : record["offset"] + size]
        except (RuntimeError, KeyError) as error:
            raise self._pipes.broken(f"importing memory: {error}") from error
        return Arrived(data, self._taken)

    def _opened(
        self,
        handle: str,
        size: int,
        offset: int,
        counter: str,
        slot: int,
        event: str,
        event_sync: bool,
    ) -> torch.Tensor:
        if self._pipes.peer_pid == os.getpid():
            return _exported_here[f"{handle} {offset}"]
        index = self.staging_device.index or 0
        storage_type: Any = torch.UntypedStorage
        storage = storage_type._new_shared_cuda(
            index,
            bytes.fromhex(handle),
            size,
            offset,
            bytes.fromhex(counter),
            slot,
            bytes.fromhex(event),
            event_sync,
        )
        return torch.empty(0, dtype=torch.uint8, device=self.staging_device).set_(storage)

    def _taken(self) -> None:
        """Tell the sender, on the reader's thread, once the copies on its stream are done."""
        torch.cuda.current_stream(self.staging_device).synchronize()
        self._pipes.send(_record())


def _record(**content: Any) -> bytes:
    record = json.dumps(content).encode()
    if len(record) > _RECORD_BYTES:
        raise ChannelBroken(f"cuda_ipc: a handle of {len(record)} bytes")
    return record.ljust(_RECORD_BYTES)


def _content(record: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(record)
    return content
