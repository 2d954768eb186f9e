"""A channel over NCCL, for KV in the memory of two GPUs. NCCL refuses two ranks on one GPU.

UNVERIFIED between two GPUs. On one GPU two processes have passed bytes both ways, each posing as
a host of its own (`tests/gpu/test_nccl.py`). The contract's tests need two GPUs for NCCL. `abort`,
few CTAs, own streams and NCCL's log have run in tests with stand-ins alone.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.cuda_streams import STREAMS
from kv_transfer.transports.nccl_settings import NcclLog, missed_rdma, quiet_watchdog, rdma_wanted
from kv_transfer.transports.transport import Channel, ChannelSpec, Needs, Receipt, Wait, after

_log = logging.getLogger(__name__)
# Tuned: the interval between two queries of a CUDA event.
_POLL_S = 0.0001
# Bound: blocks of a GPU on which a communicator's kernels run. They spin there until bytes come,
# and each has buffers.
_MOST_CTAS = 4
# How often a thread that waits for an abort says so.
_ABORT_LOG_S = 30.0


def nccl_available() -> bool:
    """Whether this torch build has NCCL, and this machine a GPU."""
    return dist.is_nccl_available() and torch.cuda.is_available()


@cache
def _warn_once() -> None:
    _log.warning("the nccl transport is UNVERIFIED between two GPUs: it has run on one alone")


@cache
def prepared() -> NcclLog:
    """NCCL's settings of this process, made once, before the first communicator."""
    quiet_watchdog()
    return NcclLog()


class NcclChannel(Channel):
    """One end of an NCCL communicator of two, on a stream of its own."""

    needs = Needs(device="two_gpus")
    verified = False
    # A bound that no GPU has confirmed: what a communicator of so few CTAs takes.
    device_bytes = 128 << 20
    ahead = 4

    def __init__(self, spec: ChannelSpec) -> None:
        _warn_once()
        if not nccl_available():
            raise ChannelBroken("nccl: this torch build has no NCCL, or there is no GPU")
        log = prepared()
        self.staging_device = spec.device
        self._peer = spec.peer
        self._lock = threading.Lock()
        self._aborted = threading.Event()
        self._aborting: threading.Thread | None = None
        free, began_s = torch.cuda.mem_get_info(spec.device)[0], time.monotonic()
        self._group: Any = _new_group(spec)
        self._stream = STREAMS.take(spec.device)
        self._connect(spec)
        taken = free - torch.cuda.mem_get_info(spec.device)[0]
        _tell(spec.name, time.monotonic() - began_s, taken, log.networks())

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`; the buffer is on the GPU and must live until the wait has ended."""
        return self._post("send", buffer)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        return after(self._post("recv", staging[:size]), staging[:size])

    def abort(self) -> None:
        """Abort the communicator, on a thread of its own because that may block; ends all waits."""
        self._aborted.set()
        with self._lock:
            group, self._group = self._group, None
            if group is not None:
                self._aborting = threading.Thread(
                    target=_abort, args=(group,), name="nccl-abort", daemon=True
                )
                self._aborting.start()

    def close(self) -> None:
        """Abort the communicator; the staging may be freed only after this has returned."""
        self.abort()
        with self._lock:
            aborting, self._aborting = self._aborting, None
        if aborting is not None:
            _await_end(aborting)
            STREAMS.give(self._stream)

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
        group = self._group
        if group is None:
            raise ChannelBroken("the nccl channel is closed")
        # The caller's work on the buffer must end before NCCL uses it.
        self._stream.wait_stream(torch.cuda.current_stream(self.staging_device))
        try:
            with torch.cuda.stream(self._stream):
                work = getattr(group, call)([buffer], self._peer, 0)
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
                if self._aborted.is_set() or time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
            else:
                if not self._aborted.is_set():
                    return
        except RuntimeError as error:
            raise ChannelBroken(f"nccl {call}: {error}") from error
        aborted = self._aborted.is_set()
        # NCCL may write to the buffer until the abort has ended.
        self.close()
        why = "was aborted" if aborted else f"took longer than {timeout_s:g} s"
        raise ChannelBroken(f"nccl {call} {why}")


def _new_group(spec: ChannelSpec) -> Any:
    options: Any = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    options.config.max_ctas = _MOST_CTAS
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
    return group


def _tell(name: str, seconds: float, taken: int, networks: set[str]) -> None:
    by = ", ".join(sorted(networks)) or "what NCCL_DEBUG=INFO tells"
    _log.info("nccl %s: joined in %.1f s, %.0f MiB, by %s", name, seconds, taken / 2**20, by)
    if (warning := missed_rdma(networks, rdma_wanted())) is not None:
        _log.warning("nccl %s: %s", name, warning)


def _await_end(aborting: threading.Thread) -> None:
    """Wait for an abort. There is no deadline: until its end NCCL may write to the KV buffer."""
    aborting.join(_ABORT_LOG_S)
    while aborting.is_alive():
        _log.error("an NCCL communicator is not aborted after %g s more", _ABORT_LOG_S)
        aborting.join(_ABORT_LOG_S)


def _abort(group: Any) -> None:
    try:
        group.abort()
    except RuntimeError as error:
        _log.warning("an NCCL communicator could not be aborted: %s", error)
