"""One end of a control stream: writing in order, reading, and detecting a silent peer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, NoReturn, TypeVar

from kv_transfer.aio.waits import fail, quietly
from kv_transfer.config import TransferConfig
from kv_transfer.errors import LinkBroken, LinkClosed
from kv_transfer.links import proto_convert as wire
from protos import kv_transfer_pb2 as pb

In = TypeVar("In", pb.SenderMessage, pb.ReceiverMessage)
Out = TypeVar("Out", pb.SenderMessage, pb.ReceiverMessage)

# Bound: messages of one transfer that can wait at the same time, with a margin.
_MESSAGES_PER_TRANSFER = 4
# Bound: messages without a transfer that can wait at the same time.
_SPARE_MESSAGES = 256
# Tuned: messages that one write carries.
_BATCH_MESSAGES = 64
# Bound: the wait for the read that fails with a write, and knows the reason.
_READ_ERROR_S = 0.2
# Bound: the time to deliver the last messages of a link that is closed on purpose.
_CLOSE_FLUSH_S = 0.2


class ControlStream(Generic[In, Out]):
    """Sends and dispatches messages until the stream ends, or either side ends it."""

    def __init__(self, config: TransferConfig, beat: Out) -> None:
        bound = _SPARE_MESSAGES + _MESSAGES_PER_TRANSFER * config.max_transfers
        self._outgoing: asyncio.Queue[Out] = asyncio.Queue(bound)
        self._beat: Out = beat
        self._config = config
        self._silent_s = 0.0
        self._peer_sent = False
        self._ending = False
        loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[NoReturn] = quietly(loop.create_future())

    def send(self, message: Out) -> None:
        """Queue the message; a peer that reads too slowly breaks the link."""
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self.end(LinkBroken("the peer does not read its control stream"))

    def end(self, error: LinkBroken) -> None:
        """Make `run` raise that error; the first call counts."""
        fail(self._broken, error)

    async def run(
        self,
        read: Callable[[], Awaitable[In | None]],
        write: Callable[[Out], Awaitable[None]],
        receive: Callable[[In], None],
        hang_up: Callable[[], Awaitable[None]] | None = None,
    ) -> NoReturn:
        """Read, write and send heartbeats until the link is over; raises the reason.

        `read` returns None at the end of the stream. `hang_up` ends this side's writing, after
        which the peer ends the stream.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(write))
            reader = tasks.create_task(self._read(read, receive))
            tasks.create_task(self._watch())
            try:
                await self._broken
            except LinkClosed:
                if hang_up is not None:
                    await self._flush_and_close(hang_up, reader)
                raise
        raise AssertionError("unreachable: no task here ends by itself")

    async def _flush_and_close(
        self, hang_up: Callable[[], Awaitable[None]], reader: asyncio.Task[None]
    ) -> None:
        """Wait until the peer has read all: closing the connection drops unread messages."""
        self._ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_FLUSH_S):
                await self._outgoing.join()
                await hang_up()
                await asyncio.wait({reader})

    async def _write(self, write: Callable[[Out], Awaitable[None]]) -> None:
        while True:
            messages = [await self._outgoing.get()]
            # One write carries all that waits, because each costs both sides a turn of their loop.
            while len(messages) < _BATCH_MESSAGES and not self._outgoing.empty():
                messages.append(self._outgoing.get_nowait())
            try:
                await write(wire.combine(messages))
            except (Exception, asyncio.CancelledError) as error:
                broken = as_broken(error)
                if self._ending:
                    return
                # The read fails at the same time, and its error has the reason.
                await asyncio.sleep(_READ_ERROR_S)
                raise broken from error
            for _ in messages:
                self._outgoing.task_done()

    async def _read(
        self, read: Callable[[], Awaitable[In | None]], receive: Callable[[In], None]
    ) -> None:
        while True:
            try:
                message = await read()
            except (Exception, asyncio.CancelledError) as error:
                broken = as_broken(error)
                if self._ending:
                    return
                raise broken from error
            if message is None and self._ending:
                return
            if message is None:
                raise LinkBroken("the peer ended the link")
            self._peer_sent = True
            self._silent_s = 0.0
            for each in wire.split(message):
                receive(each)

    async def _watch(self) -> NoReturn:
        """Send heartbeats, and count the peer's silence while this process itself runs."""
        period_s = self._config.heartbeat_s
        last = beat_at_s = time.monotonic()
        while True:
            if last >= beat_at_s:
                self.send(self._beat)
                beat_at_s = last + period_s
            # Before its first message, the peer's server may still be starting.
            limit_s = self._config.silence_s if self._peer_sent else self._config.connect_timeout_s
            if self._silent_s >= limit_s:
                raise LinkBroken(f"the peer was silent for {self._silent_s:.1f} s")
            # Wakes at the limit, which may come before the next heartbeat.
            await asyncio.sleep(min(beat_at_s - last, limit_s - self._silent_s))
            now = time.monotonic()
            self._silent_s += min(now - last, 1.5 * period_s)
            last = now


def as_broken(error: BaseException) -> LinkBroken:
    """The stream's error as a LinkBroken; raises a cancel of this task as it is."""
    if isinstance(error, LinkBroken):
        return error
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    return LinkBroken(str(error) or type(error).__name__)
