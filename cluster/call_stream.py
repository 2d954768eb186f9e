"""The router's end of the stream to one replica: begins calls, cancels them, hands out events."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

import grpc.aio

from cluster import metrics
from engine.errors import Internal, ReplicaLost, TandemError
from protos.calls_pb2 import CallEvent, CancelCall, Command, ReplicaMessage, RouterMessage
from protos.calls_pb2_grpc import CallsStub
from protos.decode_pb2 import DecodeRequest
from protos.prefill_pb2 import PrefillRequest

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Who began a call."""

    def take(self, event: CallEvent) -> None:
        """The next event of the call, of which `ended` is the last; must not wait or raise."""
        ...

    def lost(self, error: TandemError) -> None:
        """The stream broke, or a fault of ours ended the call; nothing more comes."""
        ...


class Call:
    """A call that was begun."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def cancel(self) -> None:
        """Have the replica end it; its `ended` still comes. Idempotent."""
        self._connection.cancel(self._number)


class CallStream:
    """All calls to one replica. The stream is opened for the first, and again after it broke."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._connection: _Connection | None = None

    def begin(self, request: PrefillRequest | DecodeRequest, receiver: Receiver) -> Call:
        """Begin a call; what it gives, its end and its failure all go to the receiver."""
        if self._connection is None or self._connection.over:
            self._connection = _Connection(CallsStub(self._channel).Open())
        return self._connection.begin(request, receiver)

    async def close(self, grace_s: float) -> None:
        """Let the calls end, at most for `grace_s`, and close the channel."""
        if self._connection is not None:
            await self._connection.close(grace_s)
        await self._channel.close()


class _Connection:
    """One stream, from its opening until it breaks or is closed."""

    def __init__(self, stream: Any) -> None:
        self.over = False
        self._stream = stream
        self._receivers: dict[int, Receiver] = {}
        self._begun = 0
        self._commands: list[Command] = []
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._reading = asyncio.create_task(self._read())
        self._writing = asyncio.create_task(self._write())

    def begin(self, request: PrefillRequest | DecodeRequest, receiver: Receiver) -> Call:
        self._begun += 1
        number = self._begun
        if isinstance(request, PrefillRequest):
            command = Command(call=number, prefill=request)
        else:
            command = Command(call=number, decode=request)
        self._receivers[number] = receiver
        self._empty.clear()
        self._send(command)
        return Call(self, number)

    def cancel(self, number: int) -> None:
        if number in self._receivers:
            self._send(Command(call=number, cancel=CancelCall()))

    async def close(self, grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            log.info("%d calls did not end in time", len(self._receivers))
        self._reading.cancel()
        await asyncio.gather(self._reading, self._writing, return_exceptions=True)

    def _send(self, command: Command) -> None:
        self._commands.append(command)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            commands, self._commands = self._commands, []
            try:
                await self._stream.write(RouterMessage(commands=commands))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the stream is over, which whoever reads it is told, too

    async def _read(self) -> None:
        reason = "the stream ended"
        try:
            while (message := await self._stream.read()) is not grpc.aio.EOF:
                await self._dispatch(message)
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
        finally:
            # Also where grpc.aio says by a cancel that the other side ended the stream.
            self._end(reason)

    async def _dispatch(self, message: ReplicaMessage) -> None:
        tokens = 0
        for event in message.events:
            receiver = self._receivers.get(event.call)
            if receiver is None:
                continue
            if event.HasField("ended"):
                self._forget(event.call)
            tokens += len(event.tokens.ids) or len(event.first_token.tokens.ids)
            self._give(receiver, event)
            # Or a first token would wait until the tokens of a large batch are written.
            await asyncio.sleep(0)
        metrics.GENERATED.inc(tokens)

    def _give(self, receiver: Receiver, event: CallEvent) -> None:
        try:
            receiver.take(event)
        except Exception:
            log.exception("an event could not be taken")
            self._forget(event.call)
            receiver.lost(Internal("internal error"))

    def _forget(self, number: int) -> None:
        self._receivers.pop(number, None)
        if not self._receivers:
            self._empty.set()

    def _end(self, reason: str) -> None:
        self.over = True
        self._stream.cancel()
        self._writing.cancel()
        receivers, self._receivers = self._receivers, {}
        self._empty.set()
        for receiver in receivers.values():
            receiver.lost(ReplicaLost(reason, retry_after_s=1.0))
