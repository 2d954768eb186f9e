"""What both ends of a link have in common: its life, its channel, its threads and its staging."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn, TypeVar, cast

import torch

from engine.errors import ConfigError, TransferFailed
from engine.kv.cache import KvCache
from kv_transfer import metrics
from kv_transfer.aio.waits import first_cause, until
from kv_transfer.aio.worker_thread import WorkerThread
from kv_transfer.config import TransferConfig
from kv_transfer.counters import LinkCounters
from kv_transfer.errors import ChannelBroken, LinkBroken, LinkClosed
from kv_transfer.frames.borrowed_blocks import BlockLender
from kv_transfer.frames.checksum import SEAL_BYTES
from kv_transfer.frames.staging import LinkStaging, StagingPool
from kv_transfer.links.control_stream import ControlStream
from kv_transfer.transports.registry import candidates, name_problem
from kv_transfer.transports.transport import Channel, ChannelOpener, ChannelSpec
from protos import kv_transfer_pb2 as pb

_log = logging.getLogger(__name__)
# A call on a channel must end by its own timeout; this much later its thread is given up.
GRACE_S = 0.5
# So many frames may be announced for each staging buffer: those that have none yet wait in the
# channel thread's queue, and the control stream has less to say.
FRAMES_PER_BUFFER = 4

In = TypeVar("In", pb.SenderMessage, pb.ReceiverMessage)
Out = TypeVar("Out", pb.SenderMessage, pb.ReceiverMessage)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all links of one side of a replica share; `copying` is held by who copies blocks.

    Only a side that sends has a use for its `lender`.
    """

    cache: KvCache
    config: TransferConfig
    open_channel: ChannelOpener
    staging: StagingPool
    copying: threading.Lock
    counters: LinkCounters
    lender: BlockLender


def make_shared(
    cache: KvCache, config: TransferConfig, open_channel: ChannelOpener, *, sends: bool
) -> Shared:
    """Fresh staging and counters for one side of a replica.

    Only the side that sends has staging for others to read.
    """
    pinned = cache.device.type == "cuda"
    if (problem := name_problem(config.transport)) is not None:
        raise ConfigError(f"kv.{problem}")
    lends = any(channel.lends_memory for channel in candidates(config.transport).values())
    shared = sends and not pinned and lends
    # Links at their bound, and as many again whose threads are still inside a dead channel.
    limit = 2 * config.max_links * config.staging_buffers
    size = config.frame_bytes + SEAL_BYTES
    staging = StagingPool(size, limit, pinned=pinned, shared=shared)
    lock, counters = threading.Lock(), LinkCounters()
    return Shared(cache, config, open_channel, staging, lock, counters, BlockLender(cache))


class Link(ABC, Generic[In, Out]):
    """One end of one link: `run` is its whole life, and after it nothing of it is left."""

    def __init__(self, shared: Shared, name: str, beat: Out) -> None:
        self.name = name
        self.up = False
        self.over = False
        self._shared = shared
        self._control: ControlStream[In, Out] = ControlStream(shared.config, beat)
        self._thread = WorkerThread(f"{name}-channel")
        self._channel: Channel | None = None
        self._channel_failed = False
        self._on_the_way = 0
        self._moved_s = 0.0
        self._staging: LinkStaging | None = None
        self._tasks = asyncio.TaskGroup()

    async def run(
        self,
        read: Callable[[], Awaitable[In | None]],
        write: Callable[[Out], Awaitable[None]],
        hang_up: Callable[[], Awaitable[None]] | None = None,
    ) -> TransferFailed:
        """Live until the link is over; returns why. As `ControlStream.run`."""
        reason: TransferFailed = LinkBroken("the stream ended")
        try:
            async with self._tasks as tasks:
                tasks.create_task(self._control.run(read, write, self._receive, hang_up))
                tasks.create_task(self._serve())
                tasks.create_task(self._watch_channel())
        except ExceptionGroup as group:
            reason = self._reason(first_cause(group))
        finally:
            self._end(reason)
        return reason

    def end(self, reason: str) -> None:
        """Ask the link to be over, with everything on it."""
        self._control.end(LinkClosed(reason))

    @abstractmethod
    def _receive(self, message: In) -> None:
        """Act on a message; never blocks. LinkBroken if the peer breaks the protocol."""

    @abstractmethod
    async def _serve(self) -> None:
        """Join the channel and work on it."""

    @abstractmethod
    def _failed(self, reason: TransferFailed) -> None:
        """Fail what was on the link."""

    def _now_up(self) -> None:
        """Count and log that the link can be used."""
        self.up = True
        self._shared.counters.links_open += 1
        self._shared.counters.links_opened += 1
        _log.info("link %s: up", self.name)

    async def _join(self, spec: ChannelSpec) -> None:
        """Open this end of the channel on the link's thread, and get staging that fits it."""
        opening = self._thread.submit(partial(self._open, spec))
        await until(opening, spec.timeout_s + GRACE_S, "opening the data channel")
        count = self._shared.config.staging_buffers
        device = self._open_channel().staging_device
        self._staging = LinkStaging(self._shared.staging, count, device)
        if device.type == "cuda":
            # Its memory was the engine's a moment ago, whose kernels may still write there.
            self._thread.submit(partial(_wait_for_engine, device))

    def _open(self, spec: ChannelSpec) -> None:
        if spec.device.type == "cuda":
            # Beside the engine's stream, which is full of steps, and first where both wait.
            torch.cuda.set_stream(torch.cuda.Stream(spec.device, priority=-1))
        # Kept here and not returned: a channel that opens after the link is over is closed too.
        self._channel = self._shared.open_channel(spec)

    def _open_channel(self) -> Channel:
        if self._channel is None:
            raise LinkBroken("the data channel is not open")
        return self._channel

    def _buffers(self) -> LinkStaging:
        if self._staging is None:
            raise LinkBroken("the data channel is not open")
        return self._staging

    def _on_channel(
        self,
        post: Callable[[torch.Tensor], Callable[[float], T]],
        then: Callable[[T], None],
        *,
        urgent: bool = False,
    ) -> None:
        """Queue a message of the channel, to be posted and waited for in the order of these calls.

        `post` gets a staging buffer, on the channel's thread. `then` is called in the end, unless
        the link is over, and soon if it is urgent; a LinkBroken that it raises ends the link.
        """
        if not self._on_the_way:
            self._moved_s = time.monotonic()
        self._on_the_way += 1
        begin, through = partial(self._post, post), partial(self._through, then)
        self._thread.begin(begin, through, self._ahead, urgent=urgent)

    @property
    def _ahead(self) -> int:
        return min(self._open_channel().ahead, self._shared.config.staging_buffers)

    def _aside(self, call: Callable[[], T], then: Callable[[T], None]) -> None:
        """Queue a call on the link's thread that waits for nobody; `then` as for `_on_channel`."""
        self._thread.begin(lambda: call, partial(self._heard, then), self._ahead, urgent=True)

    def _through(
        self, then: Callable[[T], None], result: T | None, error: Exception | None
    ) -> None:
        self._on_the_way -= 1
        self._heard(then, result, error)

    def _heard(self, then: Callable[[T], None], result: T | None, error: Exception | None) -> None:
        if self.over:
            return
        try:
            if error is not None:
                raise error
            then(cast(T, result))
        except TransferFailed as failed:
            broken = failed if isinstance(failed, LinkBroken) else LinkBroken(failed.message)
            self._control.end(broken)
        except Exception as bug:  # a bug of ours: the link ends, and says so
            self._control.end(self._unexpected(bug))

    async def _watch_channel(self) -> NoReturn:
        """Give the channel up when nothing moves on it any more, whatever its own timeouts do."""
        limit_s = self._shared.config.io_timeout_s + GRACE_S
        while True:
            await asyncio.sleep(limit_s / 8)
            if self._on_the_way and time.monotonic() - self._moved_s > limit_s:
                raise ChannelBroken(f"no message of the data channel ended for {limit_s:g} s")

    def _post(self, post: Callable[[torch.Tensor], Callable[[float], T]]) -> Callable[[], T]:
        """On the channel's thread: nothing more after a failure, or the two sides lose their
        order.
        """
        if self.over or self._channel_failed:
            raise ChannelBroken("the data channel failed before")
        staging = self._buffers()
        buffer = staging.take()
        try:
            return partial(self._wait, post(buffer), staging, buffer)
        except Exception:
            self._channel_failed = True
            staging.give_back(buffer)
            raise

    def _wait(self, wait: Callable[[float], T], staging: LinkStaging, buffer: torch.Tensor) -> T:
        try:
            return wait(self._shared.config.io_timeout_s)
        except Exception:
            self._channel_failed = True
            raise
        finally:
            self._moved_s = time.monotonic()
            staging.give_back(buffer)

    def _reason(self, cause: BaseException) -> TransferFailed:
        if isinstance(cause, TransferFailed):
            return cause
        return self._unexpected(cause)

    def _unexpected(self, cause: BaseException) -> LinkBroken:
        _log.error("link %s: unexpected error", self.name, exc_info=cause)
        return LinkBroken(f"{type(cause).__name__}: {cause}")

    def _end(self, reason: TransferFailed) -> None:
        self.over = True
        # From here for transports that can end a wait; closing may block and stays on the thread.
        if self._channel is not None:
            self._channel.abort()
        self._thread.submit(self._close_channel)
        self._thread.stop()
        if self._staging is not None:
            self._staging.close()
        if self.up:
            self._shared.counters.links_open -= 1
        if isinstance(reason, LinkClosed):
            _log.info("link %s: closed: %s", self.name, reason.message)
        else:
            self._shared.counters.links_failed += 1
            metrics.LINKS_BROKEN.inc()
            _log.warning("link %s: broken: %s", self.name, reason.message)
        self._failed(reason)

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _wait_for_engine(device: torch.device) -> None:
    """What this thread launches comes behind what the engine has launched so far."""
    torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))


def message_in(buffer: torch.Tensor, size: int) -> torch.Tensor:
    """The part of a staging buffer that a frame of that size and its seal use."""
    return buffer[: size + SEAL_BYTES]
