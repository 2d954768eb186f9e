"""A light client of many streams in one process, over gRPC or server-sent events.

While streams run the client only keeps the raw pieces; all parsing comes afterwards.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from bench.router.fake_replicas import ECHO
from tandem_client.protos import inference_pb2

GENERATE = "/tandem.v1.Inference/Generate"
_CHANNELS = 4
_LONGEST = 900_000


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The request of one stream to the fake replicas: `tokens` in each step of `step_ms`."""

    endpoint: str
    step_ms: int
    tokens: int = 1
    most: int = _LONGEST
    resumable: bool = False


class OutOfOrder(Exception):
    """A token is missing, came twice or came out of order."""


@dataclass(slots=True)
class Taken:
    """The raw pieces of one stream; `first_s` is when the first token came."""

    pieces: list[bytes] = field(default_factory=list)
    first_s: float | None = None


class Streams(Protocol):
    """A kind of client."""

    async def run(self, spec: StreamSpec, taken: Taken) -> None:
        """Send the request, and take all pieces until the end or a cancel."""
        ...

    def check(self, taken: Taken, begin: int, stop: int) -> tuple[int, int]:
        """Messages and tokens in pieces[begin:stop]; OutOfOrder if the stream is not in order."""
        ...

    def count(self, pieces: Sequence[bytes]) -> tuple[int, int]:
        """Messages and tokens in these pieces of one stream."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class GrpcStreams:
    """Streams over a few channels to the router's gRPC front end."""

    def __init__(self, address: str, authority: str | None = None) -> None:
        # Channels of equal options share one connection unless told not to.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channels = [channel_to(address, authority, options=options) for _ in range(_CHANNELS)]
        self._next = 0

    async def run(self, spec: StreamSpec, taken: Taken) -> None:
        """See Streams."""
        self._next += 1
        channel = self._channels[self._next % _CHANNELS]
        call = _raw(channel, GENERATE, _request(spec).SerializeToString())
        try:
            async for piece in call:
                taken.pieces.append(piece)
                if taken.first_s is None and len(taken.pieces) == 2:
                    taken.first_s = time.perf_counter()
        finally:
            call.cancel()

    def check(self, taken: Taken, begin: int, stop: int) -> tuple[int, int]:
        """See Streams."""
        due = 0
        for one in _tokens(taken.pieces):
            if one.index != due:
                raise OutOfOrder(f"token {one.index} came where {due} was due")
            due += len(one.ids)
        return self.count(taken.pieces[begin:stop])

    def count(self, pieces: Sequence[bytes]) -> tuple[int, int]:
        """See Streams."""
        found = [len(one.ids) for one in _tokens(pieces)]
        return len(found), sum(found)

    async def close(self) -> None:
        """Close the channels."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


class SseStreams:
    """Streams over a connection each to the router's HTTP front end."""

    def __init__(self, address: str, authority: str | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._where = (host, int(port))
        self._tls = ssl.create_default_context(cafile=authority) if authority else None

    async def run(self, spec: StreamSpec, taken: Taken) -> None:
        """See Streams."""
        reader, writer = await self.open()
        try:
            writer.write(self.request(spec))
            while piece := await reader.read(1 << 16):
                taken.pieces.append(piece)
                if taken.first_s is None and b"data: " in piece:
                    taken.first_s = time.perf_counter()
                if piece.endswith(b"0\r\n\r\n"):
                    break
        finally:
            writer.transport.abort()

    async def open(
        self, limit: int = 1 << 16, window: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that buffers twice `limit` bytes; the system has `window` bytes for it."""
        sock = socket.socket()
        sock.setblocking(False)
        if window is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        try:
            await asyncio.get_running_loop().sock_connect(sock, self._where)
        except BaseException:
            sock.close()
            raise
        name = None if self._tls is None else self._where[0]
        return await asyncio.open_connection(
            sock=sock, limit=limit, ssl=self._tls, server_hostname=name
        )

    def request(self, spec: StreamSpec) -> bytes:
        """The bytes of a stream's request."""
        return _post(spec)

    def check(self, taken: Taken, begin: int, stop: int) -> tuple[int, int]:
        """See Streams."""
        texts = _texts(b"".join(taken.pieces))
        numbers = [int(word) for text in texts for word in text.split()]
        if numbers != list(range(len(numbers))):
            raise OutOfOrder("the text of a stream has a token out of order")
        return self.count(taken.pieces[begin:stop])

    def count(self, pieces: Sequence[bytes]) -> tuple[int, int]:
        """See Streams."""
        found = _texts(b"".join(pieces))
        return len(found), sum(text.count(" ") for text in found)

    async def close(self) -> None:
        """Do nothing: each stream closes its connection."""


def streams_to(front_end: str, address: str, authority: str | None = None) -> Streams:
    """A client of that front end, "grpc" or "http"; over TLS where `authority` is a file."""
    kind = GrpcStreams if front_end == "grpc" else SseStreams
    return kind(address, authority)


def channel_to(
    address: str, authority: str | None, options: Sequence[tuple[str, int]] = ()
) -> grpc.aio.Channel:
    """A channel to a front end; over TLS where `authority` is a file."""
    if authority is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(Path(authority).read_bytes())
    return grpc.aio.secure_channel(address, credentials, options=options)


async def first_token_s(run: Callable[[Taken], Awaitable[None]]) -> float:
    """Seconds from the request to the first token."""
    taken, began = Taken(), time.perf_counter()
    await run(taken)
    if taken.first_s is None:
        raise OutOfOrder("a stream ended without a token")
    return taken.first_s - began


async def one_hop_s(channel: grpc.aio.Channel) -> float:
    """Seconds of a call that a replica answers itself with one message, without a router."""
    began = time.perf_counter()
    async for _ in _raw(channel, ECHO, b"x" * 40):
        return time.perf_counter() - began
    raise OutOfOrder("no echo")


def _raw(channel: grpc.aio.Channel, method: str, request: bytes) -> Any:
    """A call whose messages stay bytes."""
    multicallable: Any = channel.unary_stream(method)
    return multicallable(request)


def _request(spec: StreamSpec) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        endpoint=spec.endpoint,
        token_ids=inference_pb2.TokenIds(ids=(spec.step_ms, spec.tokens)),
        sampling=inference_pb2.Sampling(max_tokens=spec.most, ignore_eos=True),
        resumable=spec.resumable,
    )


def _post(spec: StreamSpec) -> bytes:
    body = json.dumps(
        {
            "prompt": [spec.step_ms, spec.tokens],
            "max_tokens": spec.most,
            "endpoint": spec.endpoint,
            "ignore_eos": True,
            "stream": True,
            "resumable": spec.resumable,
        }
    ).encode()
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}\r\n\r\n",
    )
    return "\r\n".join(lines).encode() + body


def _tokens(pieces: Sequence[bytes]) -> list[inference_pb2.Tokens]:
    """The tokens of each message that has some."""
    events = [inference_pb2.GenerateEvent.FromString(piece) for piece in pieces]
    return [event.tokens for event in events if event.HasField("tokens")]


def _texts(raw: bytes) -> list[str]:
    """The text of each complete event in a stream, which may be cut anywhere."""
    found = []
    for part in raw.split(b"data: ")[1:]:
        line, ended, _ = part.partition(b"\n\n")
        if ended and line.startswith(b"{"):
            event = json.loads(line)
            found += [choice["text"] for choice in event.get("choices") or []]
    return found
