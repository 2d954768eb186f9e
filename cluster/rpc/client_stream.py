"""The router's end of the streams to replicas: begins calls, cancels them, hands out events.

A first token is handed out as it comes. Other events are handed out one for each pass of the event
loop, so that a first token never waits until the tokens of a large batch are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from google.protobuf.message import DecodeError

from cluster.rpc.fair_dispatch import FairDispatcher
from cluster.rpc.sent_prompts import SentPrompts
from cluster.telemetry import router_metrics as metrics
from engine.errors import Internal, ReplicaLost, TandemError, Unavailable
from protos.calls_pb2 import CallEvent, CancelCall, Command, ReplicaMessage, RouterMessage
from protos.decode_pb2 import DecodeRequest
from protos.prefill_pb2 import PrefillRequest
from protos.shared_prompt import SharedPrompt
from protos.wire.client import Connector
from protos.wire.framing import Wire

log = logging.getLogger(__name__)

Request = PrefillRequest | DecodeRequest

_CONNECT_S = 5.0
# Events that a router may be behind before it takes no more, and the replica merges them.
_MOST_WAITING = 512
# Bound: how long a replica keeps a prompt that no call needs, where no message goes out meanwhile.
_FORGET_S = 1.0
# Tokens that are counted together where events always wait.
_COUNTED = 256


class CallReceiver(Protocol):
    """Gets the events of a call that it began."""

    def take(self, event: CallEvent) -> None:
        """The next event of the call, of which `ended` is the last; must not wait or raise."""
        ...

    def lost(self, error: TandemError) -> None:
        """End the call: the stream broke, or taking an event failed. No more events come."""
        ...


class ReplicaCall:
    """A call that has begun."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def cancel(self) -> None:
        """Have the replica end the call; its `ended` still comes. Idempotent."""
        self._connection.cancel(self._number)


class CallStream:
    """All calls to one replica. The connection is made for the first, and again after it broke."""

    def __init__(self, address: str, connector: Connector, dispatcher: FairDispatcher) -> None:
        self._address = address
        self._connector = connector
        self._dispatcher = dispatcher
        self._connection: _Connection | None = None

    def begin(self, request: Request, prompt: SharedPrompt, receiver: CallReceiver) -> ReplicaCall:
        """Begin a call. Its events, its end and its failure go to the receiver.

        The prompt goes once to the replica, however many of its calls run there.
        """
        if self._connection is None or self._connection.over:
            self._connection = _Connection(self._address, self._connector, self._dispatcher)
        return self._connection.begin(request, prompt, receiver)

    def heard(self) -> bool | None:
        """Whether anything came from the replica since the last time; None while not connected."""
        return self._connection.heard() if self._connection is not None else None

    def cut(self, reason: str) -> bool:
        """End the connection and its calls at once; False where no call ran."""
        return self._connection is not None and self._connection.cut(reason)

    async def close(self, grace_s: float) -> None:
        """Let the calls end, at most for `grace_s`, and close the connection."""
        if self._connection is not None:
            await self._connection.close(grace_s)


class CallStreams:
    """The streams to all replicas, one per address, made when they are first used."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._streams: dict[str, CallStream] = {}
        # All streams share one dispatcher, however many replicas there are.
        self._dispatcher = FairDispatcher()

    def to(self, address: str) -> CallStream:
        """The stream to that address."""
        stream = self._streams.get(address)
        if stream is None:
            stream = CallStream(address, self._connector, self._dispatcher)
            self._streams[address] = stream
        return stream

    def heard(self, address: str) -> bool | None:
        """Whether anything came from there since the last time; None while not connected."""
        return self._streams[address].heard() if address in self._streams else None

    def cut(self, address: str, reason: str) -> bool:
        """End the connection to that address and its calls at once; False where none ran."""
        return address in self._streams and self._streams[address].cut(reason)

    async def keep(self, addresses: Iterable[str], grace_s: float) -> None:
        """Close the streams to all other addresses once their calls end, at most after `grace_s`.

        A replica can be missing from the directory and still be streaming.
        """
        gone = [self._streams.pop(a) for a in set(self._streams) - set(addresses)]
        await asyncio.gather(*(stream.close(grace_s) for stream in gone))

    async def close(self) -> None:
        """Close all streams, and end their calls."""
        await self.keep((), 0)


class _Connection:
    """One connection, from the first attempt until it breaks or is closed."""

    def __init__(self, address: str, connector: Connector, dispatcher: FairDispatcher) -> None:
        self.over = False
        self._dispatcher = dispatcher
        self._receivers: dict[int, CallReceiver] = {}
        self._begun = 0
        self._unsent: list[RouterMessage] | None = []
        self._prompts = SentPrompts()
        self._forgetting: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._tokens = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._ended = asyncio.Event()
        self._wire = Wire(self._take, self._lost, self._opened)
        self._opening = asyncio.create_task(self._open(address, connector))

    def heard(self) -> bool | None:
        return None if self.over or self._unsent is not None else self._wire.heard()

    def cut(self, reason: str) -> bool:
        """End now; later messages are ignored, and the next call makes another connection."""
        if self.over:
            return False
        self.over, busy = True, bool(self._receivers)
        self._wire.close(reason)
        if self._unsent is not None:
            self._opening.cancel()
            self._end(reason)
        return busy

    def begin(self, request: Request, prompt: SharedPrompt, receiver: CallReceiver) -> ReplicaCall:
        self._begun += 1
        number = self._begun
        request.prompt, before = self._prompts.hold(number, prompt)
        if isinstance(request, PrefillRequest):
            command = Command(call=number, prefill=request)
        else:
            command = Command(call=number, decode=request)
        self._receivers[number] = receiver
        self._empty.clear()
        self._send(*before, command)
        return ReplicaCall(self, number)

    def cancel(self, number: int) -> None:
        if number in self._receivers:
            self._send(Command(call=number, cancel=CancelCall()))

    async def close(self, grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            log.info("%d calls did not end in time", len(self._receivers))
        self._wire.close()
        if self._unsent is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
            self._end("the connection was closed")
        await self._ended.wait()

    async def _open(self, address: str, connector: Connector) -> None:
        try:
            await connector.connect(address, "calls", self._wire, _CONNECT_S)
        except Unavailable as error:
            self._end(error.message)

    def _opened(self) -> None:
        unsent, self._unsent = self._unsent or [], None
        for message in unsent:
            self._wire.send(message.SerializeToString())

    def _send(self, *commands: Command) -> None:
        """Send the commands in one message, or keep them until the connection is open.

        Prompts are forgotten with any message, so that an end has none of its own.
        """
        message = RouterMessage(commands=(*self._prompts.forget(), *commands))
        if self._unsent is not None:
            self._unsent.append(message)
        else:
            self._wire.send(message.SerializeToString())

    def _take(self, message: bytes) -> None:
        """Hand out first tokens now, and the other events one by one."""
        try:
            events = ReplicaMessage.FromString(message).events
        except DecodeError:
            self._wire.close("a message that cannot be read")
            return
        for event in events:
            # A first token is the first event of its call, so it overtakes no event of that call.
            if event.HasField("first_token"):
                self._dispatch(event)
                self._count()
            else:
                self._waiting += 1
                self._dispatcher.add(partial(self._next, event))
        if self._waiting > _MOST_WAITING:
            self._wire.pause()

    def _next(self, event: CallEvent) -> None:
        self._waiting -= 1
        self._dispatch(event)
        self._count()
        if self._waiting == _MOST_WAITING // 2:
            self._wire.resume()

    def _dispatch(self, event: CallEvent) -> None:
        receiver = self._receivers.get(event.call)
        if receiver is None:
            return
        if event.HasField("ended"):
            self._forget(event.call)
        self._tokens += len(event.tokens.ids) or len(event.first_token.tokens.ids)
        try:
            receiver.take(event)
        except Exception:
            log.exception("an event could not be taken")
            self.cancel(event.call)
            self._forget(event.call)
            receiver.lost(Internal("internal error"))

    def _count(self) -> None:
        """Count all tokens that came together at once."""
        if self._tokens and (not self._waiting or self._tokens >= _COUNTED):
            metrics.GENERATED.inc(self._tokens)
            self._tokens = 0

    def _forget(self, number: int) -> None:
        self._receivers.pop(number, None)
        if self._prompts.release(number) and self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(_FORGET_S, self._forget_unused)
        if not self._receivers:
            self._empty.set()

    def _forget_unused(self) -> None:
        self._forgetting = None
        if forget := self._prompts.forget():
            self._send(*forget)

    def _lost(self, reason: str) -> None:
        """The connection has ended; events that came by it are handed out first."""
        self.over = True
        self._dispatcher.add(partial(self._end, reason))

    def _end(self, reason: str) -> None:
        self.over = True
        receivers, self._receivers = self._receivers, {}
        self._prompts.clear()
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._empty.set()
        self._ended.set()
        for receiver in receivers.values():
            try:
                receiver.lost(ReplicaLost(reason, retry_after_s=1.0))
            except Exception:  # the other receivers must be told, too
                log.exception("a call could not be ended")
