"""A client that stops reading, at each front end: bounded memory, and all tokens in the end.

The tokens come from a real buffer, as a router fills it. Once the front end waits for its client,
the rest of them comes far faster than it is read.
"""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc.aio
import pytest
from websockets.asyncio.client import connect

from cluster.api import Event, GenerateRequest, Started, Summary, Tokens
from cluster.gateway import grpc_server as gateway_grpc
from cluster.gateway import uvicorn_server as http_server
from cluster.router.event_buffer import EventBuffer
from engine.types.sequence import SampledToken
from tandem_client.protos import inference_pb2, inference_pb2_grpc
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import CARD, ScriptedGenerator
from tests.eventually import eventually

TOKENS = 6000
TOP = tuple((token, -1.5) for token in range(20))
# The kernel's buffer at either end; by itself it takes megabytes.
BUFFER = 16 * 1024
# A front end that takes nothing for so long waits for its client.
STALLED_S = 1.0


@dataclass
class FastGenerator(ScriptedGenerator):
    """Puts `TOKENS` tokens into a buffer; once their reader stalls, without waiting for it."""

    made: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    most_unread: int = 0

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        name = request.request_id
        buffer = EventBuffer()
        buffer.put(Started(name, CARD.name, 1, 7))
        making = asyncio.create_task(self._make(name, buffer))
        self.taken[name] = 0
        try:
            while True:
                event = await buffer.get()
                assert not isinstance(event, Exception)
                if isinstance(event, Tokens):
                    self.taken[name] += len(event.ids)
                yield event
                if isinstance(event, Summary):
                    return
        finally:
            making.cancel()
            buffer.close()
            self.closed.append(name)

    async def _make(self, name: str, buffer: EventBuffer) -> None:
        reads = True
        for index in range(TOKENS):
            last = "length" if index == TOKENS - 1 else None
            sampled = (SampledToken(index % 8, -0.5, TOP),)
            buffer.put(Tokens(0, index, (index % 8,), " word", last, sampled))
            self.made[name] = index + 1
            self.most_unread = max(self.most_unread, buffer.unread)
            if index % 4 == 0 and reads:
                reads = await self._is_taken(buffer)
            elif index % 4 == 0:
                await asyncio.sleep(0)
        buffer.put(Summary(1, TOKENS, (), 1.0))

    async def _is_taken(self, buffer: EventBuffer) -> bool:
        """Whether the front end takes what is there; not once it waits for a client."""
        try:
            await eventually(lambda: not buffer.unread, STALLED_S, 0)
        except TimeoutError:
            return False
        return True


@pytest.fixture
def generator():
    return FastGenerator()


@pytest.fixture(autouse=True)
def narrow_server(monkeypatch):
    listening_socket = http_server.listening_socket

    def narrow(*given, **more):
        found = listening_socket(*given, **more)
        found.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, BUFFER)
        return found

    monkeypatch.setattr(http_server, "listening_socket", narrow)


def narrow_socket(port):
    """A connection that holds little of what its end does not read."""
    found = sockets.socket()
    found.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, BUFFER)
    found.connect(("127.0.0.1", port))
    found.setblocking(False)
    return found


async def stalled(generator, name):
    """Wait until everything is made of a stream, of which its client has read a first piece."""
    await eventually(lambda: generator.made.get(name) == TOKENS, 60.0)
    await asyncio.sleep(0.1)
    # Most of it is still in the event buffer, as one event for the tokens and one for the end.
    assert generator.taken[name] < TOKENS // 2
    assert generator.most_unread <= 3


def check_pieces(pieces):
    """Tokens as (index, count): all, in order, the later ones in larger pieces."""
    due = 0
    for index, count in pieces:
        assert index == due
        due += count
    assert due == TOKENS
    assert max(count for _, count in pieces) > 100


BODY = {"prompt": "x", "stream": True, "logprobs": 20, "max_tokens": TOKENS}


class Lines:
    """A stream of events of which nothing is read that is not asked for."""

    def __init__(self, port, name):
        self._socket = narrow_socket(port)
        self._loop = asyncio.get_running_loop()
        data = json.dumps(BODY | {"request_id": name}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
        head += "\r\nContent-Type: application/json"
        self._socket.send(head.encode() + b"\r\n\r\n" + data)

    async def read(self, count=1 << 16):
        return await self._loop.sock_recv(self._socket, count)

    async def pieces(self, begun=b""):
        """Everything up to the end, as (index, count)."""
        left, lines, pieces, index = begun, [], [], 0
        while b"data: [DONE]" not in lines:
            data = await self.read()
            assert data, "the stream broke"
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    if choice["logprobs"] is None:  # the end of the choice
                        continue
                    pieces.append((index, len(choice["logprobs"]["tokens"])))
                    index += pieces[-1][1]
        return pieces

    def close(self):
        self._socket.close()


async def test_over_http(generator):
    async with front_end(generator) as port:
        slow = Lines(port, "slow")
        begun = await slow.read(100)
        await stalled(generator, "slow")
        other = Lines(port, "other")
        assert sum(count for _, count in await other.pieces()) == TOKENS
        assert generator.taken["slow"] < TOKENS // 2
        check_pieces(await slow.pieces(begun))
        for one in (slow, other):
            one.close()
    assert sorted(generator.closed) == ["other", "slow"]


async def socket_pieces(socket, ended=1):
    pieces: dict[str, list[tuple[int, int]]] = {}
    while ended:
        message = json.loads(await socket.recv())
        if message["type"] == "tokens":
            piece = message["index"], len(message["ids"])
            pieces.setdefault(message["id"], []).append(piece)
        ended -= message["type"] == "end"
    return pieces


async def test_over_a_websocket(generator):
    async with front_end(generator) as port:
        options = {"max_size": 1 << 26, "max_queue": 1, "ping_interval": None}
        url = f"ws://127.0.0.1:{port}/v1/stream"
        slow = await connect(url, sock=narrow_socket(port), **options)
        other = await connect(url, **options)
        body = {key: value for key, value in BODY.items() if key != "stream"}
        for name in ("a", "b"):
            ask = body | {"type": "completion", "id": name, "request_id": name}
            await slow.send(json.dumps(ask))
        for name in ("a", "b"):
            await stalled(generator, name)
        await other.send(json.dumps(body | {"type": "completion", "id": "c", "request_id": "c"}))
        (had,) = (await socket_pieces(other)).values()
        assert sum(count for _, count in had) == TOKENS
        assert generator.taken["a"] < TOKENS // 2
        for had in (await socket_pieces(slow, 2)).values():
            check_pieces(had)
        await slow.close()
        await other.close()


async def test_over_grpc(generator):
    server = await gateway_grpc.start(generator)
    options = [
        ("grpc.max_receive_message_length", 1 << 26),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    request = inference_pb2.GenerateRequest(text="x")
    request.sampling.logprobs = 20
    request.sampling.max_tokens = TOKENS
    try:
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as first,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as second,
        ):
            request.request_id = "slow"
            slow = inference_pb2_grpc.InferenceStub(first).Generate(request)
            begun = [await slow.read(), await slow.read()]
            await stalled(generator, "slow")
            request.request_id = "other"
            other = inference_pb2_grpc.InferenceStub(second).Generate(request)
            had = [event async for event in other]
            assert sum(len(event.tokens.ids) for event in had) == TOKENS
            assert generator.taken["slow"] < TOKENS // 2
            events = begun
            while (event := await slow.read()) is not grpc.aio.EOF:
                events.append(event)
    finally:
        await server.stop(0)
    pieces = [event.tokens for event in events if event.HasField("tokens")]
    check_pieces([(piece.index, len(piece.ids)) for piece in pieces])
