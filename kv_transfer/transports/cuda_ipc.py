"""A channel through the memory of one GPU that two processes of one host use: read in place.

The sender lends its staging by a CUDA IPC handle (torch.UntypedStorage._share_cuda_, what
torch.multiprocessing sends tensors with). Pipes say where to read and that it was read.
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

_RECORD_BYTES = 2048
# A process cannot open its own handles: what it has lent, by handle.
_lent_here: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()


class CudaIpcChannel(Channel):
    """One end; blocks until the other end has joined, or ChannelBroken."""

    needs = Needs(one_host=True, device="one_gpu")
    ahead = 3

    def __init__(self, spec: ChannelSpec) -> None:
        if spec.device.type != "cuda" or not torch.cuda.is_available():
            raise ChannelBroken("cuda_ipc: KV does not lie on a GPU, or there is none")
        self.staging_device = spec.device
        # By the address of its memory: a buffer that was lent, whole, and its number.
        self._lent: dict[int, tuple[int, torch.Tensor]] = {}
        self._borrowed: dict[int, torch.Tensor] = {}
        self._pipes = Pipes(spec, "cuda_ipc", _RECORD_BYTES)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`: done when the receiver has read it."""
        torch.cuda.current_stream(self.staging_device).synchronize()
        storage = buffer.untyped_storage()
        message: dict[str, Any] = {"offset": buffer.storage_offset(), "size": buffer.numel()}
        try:
            number, _ = self._lent.get(storage.data_ptr()) or self._lend(storage, message)
        except RuntimeError as error:
            raise self._pipes.broken(f"lending memory: {error}") from error
        self._pipes.say(_record(number=number, **message))
        return self._until_taken

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`; the staging is left alone."""
        self._pipes.check()
        return partial(self._borrow, size)

    def abort(self) -> None:
        """End whatever waits on this side."""
        self._pipes.abort()

    def close(self) -> None:
        """Close the pipes, which ends the other side's waits too, and give up what was borrowed."""
        self._pipes.close()
        self._borrowed.clear()
        self._lent.clear()

    def _lend(self, storage: Any, message: dict[str, Any]) -> tuple[int, torch.Tensor]:
        whole = torch.empty(0, dtype=torch.uint8, device=self.staging_device).set_(storage)
        _, handle, size, offset, counter, place, event, waits = storage._share_cuda_()
        shown = [handle.hex(), size, offset, counter.hex(), place, event.hex(), waits]
        message["handle"] = shown
        _lent_here[f"{handle.hex()} {offset}"] = whole
        lent = self._lent[storage.data_ptr()] = (len(self._lent), whole)
        return lent

    def _until_taken(self, timeout_s: float) -> None:
        try:
            if _content(self._pipes.hear(timeout_s, "send")):
                raise self._pipes.broken("both ends send")
        except ChannelBroken:
            # The buffer will be used again. A receiver that still reads it finds the pipes closed.
            self._pipes.close()
            raise

    def _borrow(self, size: int, timeout_s: float) -> Arrived:
        said = _content(self._pipes.hear(timeout_s, "receive"))
        if not said:
            raise self._pipes.broken("an answer without a message")
        if said["size"] != size:
            raise self._pipes.broken(f"{said['size']} bytes sent, {size} expected")
        try:
            if "handle" in said:
                self._borrowed[said["number"]] = self._opened(*said["handle"])
            data = self._borrowed[said["number"]][said["offset"] : said["offset"] + size]
        except (RuntimeError, KeyError) as error:
            raise self._pipes.broken(f"borrowing memory: {error}") from error
        return Arrived(data, self._taken)

    def _opened(
        self, handle: str, size: int, offset: int, counter: str, place: int, event: str, waits: bool
    ) -> torch.Tensor:
        if self._pipes.peer_pid == os.getpid():
            return _lent_here[f"{handle} {offset}"]
        index = self.staging_device.index or 0
        storage_type: Any = torch.UntypedStorage
        storage = storage_type._new_shared_cuda(
            index,
            bytes.fromhex(handle),
            size,
            offset,
            bytes.fromhex(counter),
            place,
            bytes.fromhex(event),
            waits,
        )
        return torch.empty(0, dtype=torch.uint8, device=self.staging_device).set_(storage)

    def _taken(self) -> None:
        """On the thread that has read it: copies of its stream are done when this is told."""
        torch.cuda.current_stream(self.staging_device).synchronize()
        self._pipes.say(_record())


def _record(**content: Any) -> bytes:
    record = json.dumps(content).encode()
    if len(record) > _RECORD_BYTES:
        raise ChannelBroken(f"cuda_ipc: a handle of {len(record)} bytes")
    return record.ljust(_RECORD_BYTES)


def _content(record: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(record)
    return content
