"""A channel over NCCL, for KV in the memory of two GPUs. NCCL refuses two ranks on one GPU.

UNVERIFIED between two GPUs. On one GPU two processes have passed bytes both ways, each posing as
a host of its own (`tests/gpu/test_nccl.py`). The contract's tests need two GPUs for NCCL.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.transport import Channel, ChannelSpec, Needs, Receipt, Wait, after

_log = logging.getLogger(__name__)
# Tuned: the interval between two queries of a CUDA event.
_POLL_S = 0.0001


def nccl_available() -> bool:
    """Whether this torch build has NCCL, and this machine a GPU."""
    return dist.is_nccl_available() and torch.cuda.is_available()


@cache
def _warn_once() -> None:
    _log.warning("the nccl transport is UNVERIFIED between two GPUs: it has run on one alone")


class NcclChannel(Channel):
    """One end of an NCCL communicator of two, on a stream of its own."""

    needs = Needs(device="two_gpus")
    verified = False
    ahead = 4

    def __init__(self, spec: ChannelSpec) -> None:
        _warn_once()
        if not nccl_available():
            raise ChannelBroken("nccl: this torch build has no NCCL, or there is no GPU")
        self.staging_device = spec.device
        self._peer = spec.peer
        options: Any = dist.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = True
        # NCCL's watchdog ends the process when a call runs out of time. Our timeout comes first.
        options._timeout = timedelta(seconds=100 * spec.timeout_s)
        try:
            store: Any = spec.store
            # NCCL itself would wait without end for a peer that never joins.
            store.set(f"{spec.rank} is here", "")
            store.get(f"{spec.peer} is here")
            group: Any = dist.ProcessGroupNCCL(store, spec.rank, 2, options)
            group.eager_connect_single_device(spec.device)
        except RuntimeError as error:
            raise ChannelBroken(f"nccl join: {error}") from error
        self._group: Any = group
        self._stream = torch.cuda.Stream(spec.device, priority=-1)
        self._connect(spec)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`; the buffer is on the GPU and must live until the wait has ended."""
        return self._post("send", buffer)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        return after(self._post("recv", staging[:size]), staging[:size])

    def abort(self) -> None:
        """Do nothing: aborting NCCL blocks, so `close` does it on the channel's thread."""

    def close(self) -> None:
        """Abort the communicator; the staging may be freed only after this has returned."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _connect(self, spec: ChannelSpec) -> None:
        """Send a byte each way: NCCL's first call blocks until the other end makes the same call.

        The link stops waiting for the join in time. If the other end died, the thread stays.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device=spec.device)
        try:
            for call in ("send", "recv") if spec.rank < spec.peer else ("recv", "send"):
                self._post(call, byte)(spec.timeout_s)
        except ChannelBroken:
            self.close()
            raise

    def _post(self, call: str, buffer: torch.Tensor) -> Wait:
        if self._group is None:
            raise ChannelBroken("the nccl channel is closed")
        # The caller's work on the buffer must end before NCCL uses it.
        self._stream.wait_stream(torch.cuda.current_stream(self.staging_device))
        try:
            with torch.cuda.stream(self._stream):
                work = getattr(self._group, call)([buffer], self._peer, 0)
                work.wait()
                done = torch.cuda.Event()
                done.record(self._stream)
        except RuntimeError as error:
            raise ChannelBroken(f"nccl {call}: {error}") from error
        return partial(self._until, done, call)

    def _until(self, done: torch.cuda.Event, call: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            while not done.query():
                if self._group is None or time.monotonic() > deadline:
                    self.close()
                    raise ChannelBroken(f"nccl {call} took longer than {timeout_s:g} s")
                time.sleep(_POLL_S)
        except RuntimeError as error:
            raise ChannelBroken(f"nccl {call}: {error}") from error
