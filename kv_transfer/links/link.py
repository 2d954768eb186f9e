"""The common part of both ends of a link: its life, data channel, thread and staging."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, cast

import torch

from engine.errors import TransferFailed
from kv_transfer import metrics
from kv_transfer.aio.waits import first_cause, quietly, succeed, until
from kv_transfer.aio.worker_thread import WorkerThread
from kv_transfer.errors import ChannelBroken, LinkBroken, LinkClosed
from kv_transfer.frames.staging import LinkStaging
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.control_stream import ControlStream
from kv_transfer.links.shared import Shared
from kv_transfer.transports.cuda_streams import STREAMS
from kv_transfer.transports.rendezvous import Rendezvous
from kv_transfer.transports.transport import Channel, ChannelSpec, OwnMemory
from protos import kv_transfer_pb2 as pb

_log = logging.getLogger(__name__)
# Bound: a call on a channel ends by its own timeout; this much later its thread is abandoned.
GRACE_S = 0.5
# Bound: frames announced for each staging buffer. A frame without a buffer waits in the queue of
# the channel's thread, and the control stream carries fewer messages.
FRAMES_PER_BUFFER = 4

In = TypeVar("In", pb.SenderMessage, pb.ReceiverMessage)
Out = TypeVar("Out", pb.SenderMessage, pb.ReceiverMessage)
T = TypeVar("T")


class Link(ABC, Generic[In, Out]):
    """One end of one link. `run` is its whole life; nothing of it is left when `run` has ended.

    `make` makes a message to the peer from a field of the protocol buffer and its value.
    """

    def __init__(self, shared: Shared, name: str, peer_role: str, make: Callable[..., Out]) -> None:
        self.name = name
        self.up = False
        self.over = False
        self._shared = shared
        self._peer_role = peer_role
        # By kind of message, set by the subclass. A handler never blocks, and may raise LinkBroken.
        self._handlers: Mapping[str, Callable[[Any], None]] = {}
        self._make: Callable[..., Out] = make
        heartbeat = make(heartbeat=pb.Heartbeat())
        self._control: ControlStream[In, Out] = ControlStream(shared.config, heartbeat)
        loop = asyncio.get_running_loop()
        self._peer_joined: asyncio.Future[None] = quietly(loop.create_future())
        # Done once the link is up or over.
        self.settled: asyncio.Future[None] = loop.create_future()

        def send(key: str, value: bytes) -> None:
            loop.call_soon_threadsafe(partial(self._send, value=pb.Value(key=key, value=value)))

        self._rendezvous = Rendezvous(send, shared.config.join_timeout_s)
        self._thread = WorkerThread(f"{name}-channel")
        self._channel: Channel | None = None
        self._stream: torch.cuda.Stream | None = None
        self._channel_failed = False
        self._in_flight = 0
        self._progress_s = 0.0
        self._staging: LinkStaging | None = None
        self._tasks = asyncio.TaskGroup()

    async def run(
        self,
        read: Callable[[], Awaitable[In | None]],
        write: Callable[[Out], Awaitable[None]],
        hang_up: Callable[[], Awaitable[None]] | None = None,
    ) -> TransferFailed:
        """Live until the link is over; returns the reason. See `ControlStream.run`."""
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
        """End the link, with all its transfers."""
        self._control.end(LinkClosed(reason))

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether the link is up and no transfer is under way or on offer."""

    @abstractmethod
    async def _serve(self) -> None:
        """Join the channel and work on it."""

    @abstractmethod
    def _failed(self, reason: TransferFailed) -> None:
        """Fail all transfers on the link."""

    def _send(self, **message: Any) -> None:
        """Queue a message to the peer, by the name of its kind."""
        self._control.send(self._make(**message))

    def _receive(self, message: In) -> None:
        kind, content = wire.content(message)
        if kind == "heartbeat":
            return
        if kind == "joined":
            succeed(self._peer_joined, None)
        elif kind == "value":
            if not self._rendezvous.take(content.key, content.value):
                raise LinkBroken(f"too many values from the {self._peer_role}")
        elif (handler := self._handlers.get(kind)) is not None:
            handler(content)
        else:
            raise LinkBroken(f"unexpected message {kind!r} from the {self._peer_role}")

    async def _meet_peer(self) -> None:
        """Tell the peer that this end has joined, wait for its own join, and count the link."""
        self._send(joined=pb.Joined())
        join_s = self._shared.config.join_timeout_s
        await until(self._peer_joined, join_s, f"the {self._peer_role}'s join")
        self.up = True
        succeed(self.settled, None)
        self._shared.counters.links_open += 1
        self._shared.counters.links_opened += 1
        _log.info("link %s: up", self.name)

    async def _join(self, transport: str, name: str, rank: int, host: str) -> None:
        """Open this end of the channel on the link's thread, and take staging that fits it."""
        device, timeout_s = self._shared.cache.device, self._shared.config.join_timeout_s
        memory = OwnMemory(self._shared.cache.memory, self._shared.lender.words)
        spec = ChannelSpec(transport, name, rank, host, device, timeout_s, self._rendezvous, memory)
        opening = self._thread.submit(partial(self._open, spec))
        await until(opening, spec.timeout_s + GRACE_S, "opening the data channel")
        count = self._shared.config.staging_buffers
        staging_device = self._open_channel().staging_device
        self._staging = LinkStaging(self._shared.staging, count, staging_device)
        if staging_device.type == "cuda":
            # The staging's memory was the engine's before, whose kernels may still write to it.
            self._thread.submit(partial(_wait_for_engine, staging_device))

    def _open(self, spec: ChannelSpec) -> None:
        if spec.device.type == "cuda":
            # A stream of its own: the engine's stream is full of steps. It has priority over it.
            self._stream = STREAMS.take(spec.device)
            torch.cuda.set_stream(self._stream)
        # Stored and not returned, so that a channel that opens after the link's end is closed too.
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
        """Queue a message of the channel; posts and waits happen in the order of these calls.

        `post` gets a staging buffer, on the channel's thread. The event loop calls `then` with the
        result, at once if the message is urgent, unless the link is over. A LinkBroken from `then`
        ends the link.
        """
        if not self._in_flight:
            self._progress_s = time.monotonic()
        self._in_flight += 1
        begin, done = partial(self._post, post), partial(self._message_done, then)
        self._thread.begin(begin, done, self._ahead, urgent=urgent)

    @property
    def _ahead(self) -> int:
        return min(self._open_channel().ahead, self._shared.config.staging_buffers)

    def _on_thread(self, call: Callable[[], T], then: Callable[[T], None]) -> None:
        """Queue a call without a wait on the channel's thread; `then` as for `_on_channel`."""
        self._thread.begin(lambda: call, partial(self._finish, then), self._ahead, urgent=True)

    def _message_done(
        self, then: Callable[[T], None], result: T | None, error: Exception | None
    ) -> None:
        self._in_flight -= 1
        self._finish(then, result, error)

    def _finish(self, then: Callable[[T], None], result: T | None, error: Exception | None) -> None:
        if self.over:
            return
        try:
            if error is not None:
                raise error
            then(cast(T, result))
        except TransferFailed as failed:
            broken = failed if isinstance(failed, LinkBroken) else LinkBroken(failed.message)
            self._control.end(broken)
        except Exception as bug:  # a fault in this program: the link ends with it
            self._control.end(self._unexpected(bug))

    async def _watch_channel(self) -> NoReturn:
        """End the link when no message of the channel makes progress, whatever its timeouts do."""
        limit_s = self._shared.config.io_timeout_s + GRACE_S
        while True:
            await asyncio.sleep(limit_s / 8)
            if self._in_flight and time.monotonic() - self._progress_s > limit_s:
                raise ChannelBroken(f"no message of the data channel ended for {limit_s:g} s")

    def _post(self, post: Callable[[torch.Tensor], Callable[[float], T]]) -> Callable[[], T]:
        """Post a message, on the channel's thread.

        After a failure nothing is posted, because the two sides would lose their common order.
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
            self._progress_s = time.monotonic()
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
        succeed(self.settled, None)
        self._rendezvous.close()
        # `abort` runs here, for transports that can end a wait. `close` may block: on the thread.
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
        stream, self._stream = self._stream, None
        if stream is not None:
            STREAMS.give(stream)


def _wait_for_engine(device: torch.device) -> None:
    """Order this thread's later launches behind the launches of the engine so far."""
    torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))
