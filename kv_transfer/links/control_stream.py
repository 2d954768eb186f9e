"""Both ends of a control stream: writing in order, reading, and hearing that the peer is alive."""

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

# Messages of one transfer that can wait at the same time, generously.
_MESSAGES_PER_TRANSFER = 4
_SPARE_MESSAGES = 256
_TOGETHER = 64
_READ_KNOWS_S = 0.2
# For what was said before a side ended the link on purpose, a commit among it.
_LAST_WORDS_S = 0.2


class ControlStream(Generic[In, Out]):
    """Sends and dispatches messages until the stream, or the peer, or somebody here ends it."""

    def __init__(self, config: TransferConfig, beat: Out) -> None:
        bound = _SPARE_MESSAGES + _MESSAGES_PER_TRANSFER * config.max_transfers
        self._outgoing: asyncio.Queue[Out] = asyncio.Queue(bound)
        self._beat: Out = beat
        self._config = config
        self._silent_s = 0.0
        self._heard = False
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
        """Make `run` raise that error; the first one counts."""
        fail(self._broken, error)

    async def run(
        self,
        read: Callable[[], Awaitable[In | None]],
        write: Callable[[Out], Awaitable[None]],
        receive: Callable[[In], None],
        hang_up: Callable[[], Awaitable[None]] | None = None,
    ) -> NoReturn:
        """Read, write and beat until the link is over; raises why. None from `read` is the end.

        `hang_up` says that nothing more is written, after which the peer ends the stream.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(write))
            reader = tasks.create_task(self._read(read, receive))
            tasks.create_task(self._watch())
            try:
                await self._broken
            except LinkClosed:
                if hang_up is not None:
                    await self._last_words(hang_up, reader)
                raise
        raise AssertionError("unreachable: none of these ends by itself")

    async def _last_words(
        self, hang_up: Callable[[], Awaitable[None]], reader: asyncio.Task[None]
    ) -> None:
        """Until the peer has read all: a stream that is cancelled loses what was not read yet."""
        self._ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._outgoing.join()
                await hang_up()
                await asyncio.wait({reader})

    async def _write(self, write: Callable[[Out], Awaitable[None]]) -> None:
        while True:
            messages = [await self._outgoing.get()]
            # The next write waits until gRPC has ended this one, which takes half a millisecond.
            while len(messages) < _TOGETHER and not self._outgoing.empty():
                messages.append(self._outgoing.get_nowait())
            try:
                await write(wire.together(messages))
            except (Exception, asyncio.CancelledError) as error:
                broken = as_broken(error)
                if self._ending:
                    return
                # The read that fails with it knows why the stream is over.
                await asyncio.sleep(_READ_KNOWS_S)
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
            self._heard = True
            self._silent_s = 0.0
            for each in wire.apart(message):
                receive(each)

    async def _watch(self) -> NoReturn:
        """Beat, and count silence only while this process itself was awake to hear."""
        period_s = self._config.heartbeat_s
        last = beat_s = time.monotonic()
        while True:
            if last >= beat_s:
                self.send(self._beat)
                beat_s = last + period_s
            # Before the first word, the peer's server may still be starting.
            limit_s = self._config.silence_s if self._heard else self._config.connect_timeout_s
            if self._silent_s >= limit_s:
                raise LinkBroken(f"the peer was silent for {self._silent_s:.1f} s")
            # At the limit, and not with the next beat behind it.
            await asyncio.sleep(min(beat_s - last, limit_s - self._silent_s))
            now = time.monotonic()
            self._silent_s += min(now - last, 1.5 * period_s)
            last = now


def as_broken(error: BaseException) -> LinkBroken:
    """What gRPC raised while reading or writing; a cancel of ours is raised as it is."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    details = getattr(error, "details", None)
    text = details() if callable(details) else str(error)
    return LinkBroken(text or type(error).__name__)
