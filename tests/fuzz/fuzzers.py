"""Sends a fuzzed request to one listening port, and says what came of it in a word.

A word begins with `bad:` where the server must not answer so.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc
import grpc.aio
from google.protobuf.message import Message

from protos import router_pb2
from tandem_client.protos import inference_pb2 as wire
from tests.fuzz.chats import chat_body, chat_message, trace_of
from tests.fuzz.values import fuzzed_body, fuzzed_message, mutated

# A request that is served longer than this is cancelled by its client.
ANSWER_S = 10.0
_FORMS = {
    "completion": "/v1/completions",
    "chat": "/v1/chat/completions",
    "response": "/v1/responses",
    "message": "/v1/messages",
}
_COUNT = "/v1/messages/count_tokens"
_PATHS = (
    *_FORMS.values(),
    _COUNT,
    "/v1/responses/resp_a",
    "/v1/models",
    "/healthz",
    "/metrics",
    "/nope",
)
# Of chats and completions, where requests are drawn by kinds.
_CHATS = 0.85
_CLOSE = "Connection: close\r\n"
_JSON = f"{_CLOSE}Content-Type: application/json\r\n"
_CONSOLE = ("requests", "request", "configuration", "app.js", "nope")
_CONSOLE_FIELDS = ("id", "tenant", "endpoint", "limit", "since_s", "failed", "replica", "x")
_CONSOLE_VALUES = (
    *("", "1", "-1", "1e400", "nan", "true", "%00", "%ff", "a%0d%0ab", "%F0%9F%98%80"),
    *("x" * 600, "9" * 40, "%3Cimg%20src=x%3E"),
)
_BAD_CODES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


# Without a launcher a rollout and a stop are refused; a purge would be carried out as well.
_ADMIN: dict[str, Callable[[], Message]] = {
    "Status": router_pb2.StatusRequest,
    "GiveRole": router_pb2.GiveRoleRequest,
    "Rollout": router_pb2.RolloutRequest,
    "Stop": router_pb2.StopRequest,
    "Purge": router_pb2.PurgeRequest,
    "ListRequests": router_pb2.ListRequestsRequest,
    "Nope": router_pb2.StatusRequest,
}


async def _read_all(reader: asyncio.StreamReader, most: int = 1 << 22) -> bytes:
    found = b""
    while len(found) < most:
        piece = await reader.read(1 << 16)
        if not piece:
            break
        found += piece
    return found


class _OverHttp:
    """Where the server listens, the headers of each request, and the kinds that are drawn.

    Without `kinds`, all fields are drawn.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str = "",
        tls: ssl.SSLContext | None = None,
        kinds: Sequence[str] = (),
    ):
        self._where = host, port
        self._tls = tls
        self._kinds = kinds
        self._head = f"Host: {host}:{port}\r\n"
        if key:
            self._head += f"Authorization: Bearer {key}\r\n"

    def _trace(self, rng: random.Random) -> str:
        return "".join(f"{name}: {value}\r\n" for name, value in trace_of(rng, self._kinds))


class HttpFuzzer(_OverHttp):
    """HTTP/1.1 by hand: valid requests with fuzzed bodies, and requests that are no HTTP."""

    name = "http"

    async def send(self, rng: random.Random) -> str:
        """One request on a connection of its own."""
        data = self._drawn(rng) if self._kinds else self._request(rng)
        if rng.random() < 0.15 and not self._kinds:
            data = mutated(rng, data)
        reader, writer = await asyncio.open_connection(*self._where, ssl=self._tls)
        try:
            writer.write(data)
            if rng.random() < 0.05:
                return "left"
            if rng.random() < 0.5:
                writer.write_eof() if self._tls is None else None
            return _http_word(await _read_all(reader))
        except OSError:
            return "closed"  # by a server that read enough, sometimes before the end was written
        finally:
            writer.transport.abort()

    def _drawn(self, rng: random.Random) -> bytes:
        """A request of the kinds."""
        chat = rng.random() < _CHATS
        form = rng.choice(["chat", "response", "message"]) if chat else "completion"
        body = chat_body(rng, self._kinds, chat=chat, form=form)
        head = f"POST {_FORMS[form]} HTTP/1.1\r\n{self._head}{_JSON}"
        head += self._trace(rng)
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _request(self, rng: random.Random) -> bytes:
        form = rng.choice([*_FORMS])
        path = _FORMS[form] if rng.random() < 0.9 else rng.choice(_PATHS)
        if rng.random() < 0.05:
            return self._resuming(rng)
        if rng.random() < 0.05:
            return self._console(rng)
        method = "POST" if rng.random() < 0.95 else rng.choice(["GET", "PUT", "HEAD", "BREW"])
        body = fuzzed_body(rng, form)
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{_JSON}"
        if rng.random() < 0.05:
            head += f"X-{rng.getrandbits(32)}: {'a' * rng.choice([10, 5000, 200_000])}\r\n"
        if rng.random() < 0.1:
            pieces = [body[: len(body) // 2], body[len(body) // 2 :]]
            coded = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces if one)
            return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + coded + b"0\r\n\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _resuming(self, rng: random.Random) -> bytes:
        """A request for a stream that is not there, or for none."""
        method = rng.choice(["GET", "DELETE", "HEAD"])
        path = rng.choice(["/v1/streams", "/v1/streams/", "/v1/streams/abc", "/v1/streams/a%00b"])
        have = rng.choice(["", "?have=1.2", "?have=1.", f"?have={10 ** rng.randrange(40)}"])
        last = rng.choice(["abc:1", "abc:1:end", ":", "abc:" + "9." * rng.randrange(300), "abc"])
        event = f"Last-Event-ID: {last}\r\n" if rng.random() < 0.5 else ""
        return f"{method} {path}{have} HTTP/1.1\r\n{self._head}{_CLOSE}{event}\r\n".encode()

    def _console(self, rng: random.Random) -> bytes:
        """A request for the console; the feed with a wrong field alone, because it has no end."""
        method = rng.choice(["GET", "GET", "POST", "PUT", "HEAD"])
        name = rng.choice([*_CONSOLE, "stop", "drain", "kill", "feed?x=1&", "%00", "..%2fapp.py"])
        fields = [
            f"{rng.choice(_CONSOLE_FIELDS)}={rng.choice(_CONSOLE_VALUES)}"
            for _ in range(rng.randrange(4))
        ]
        path = f"/console/{name}{'' if '?' in name else '?'}{'&'.join(fields)}"
        return f"{method} {path} HTTP/1.1\r\n{self._head}{_CLOSE}\r\n".encode()


def _http_word(answer: bytes) -> str:
    line = answer.partition(b"\r\n")[0].split(b" ")
    if len(line) < 2 or not line[0].startswith(b"HTTP/"):
        return "closed"
    status = line[1].decode(errors="replace")
    if status.startswith("1"):
        return _http_word(answer.partition(b"\r\n\r\n")[2])
    if b"Traceback" in answer or b"internal error" in answer:
        return f"bad:{status} {answer[-300:]!r}"
    return f"bad:{answer[:600]!r}" if status.startswith("5") else status


class GrpcFuzzer:
    """The public gRPC service, with messages as bytes."""

    name = "grpc"

    def __init__(
        self,
        channel: grpc.aio.Channel,
        key: str = "",
        operator_key: str = "",
        kinds: Sequence[str] = (),
    ):
        self._kinds = kinds

        def raw(path: str, kind: Callable[..., object]) -> object:
            identity: Callable[[bytes], bytes] = bytes
            return kind(path, request_serializer=identity, response_deserializer=identity)

        base = "/tandem.v1.Inference/"
        self._streamed = {
            wire.GenerateRequest: raw(f"{base}Generate", channel.unary_stream),
            wire.ResumeRequest: raw(f"{base}Resume", channel.unary_stream),
        }
        self._unary = {
            wire.ScoreRequest: raw(f"{base}Score", channel.unary_unary),
            wire.CancelRequest: raw(f"{base}Cancel", channel.unary_unary),
            wire.GetModelRequest: raw(f"{base}GetModel", channel.unary_unary),
        }
        self._admin = {
            name: raw(f"/tandem.internal.v1.Admin/{name}", channel.unary_unary) for name in _ADMIN
        }
        self._operator = (("authorization", f"Bearer {operator_key}"),)
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def send(self, rng: random.Random) -> str:
        """One call."""
        try:
            drawn = rng.random()
            if self._kinds:
                data = chat_message(rng, self._kinds)
                await self._read(rng, wire.GenerateRequest, data, trace_of(rng, self._kinds))
            elif drawn < 0.7:
                kind = wire.GenerateRequest if drawn < 0.6 else wire.ResumeRequest
                data = fuzzed_message(rng, kind)
                await self._read(rng, kind, data)
            elif drawn < 0.9:
                kind = rng.choice(list(self._unary))
                data = fuzzed_message(rng, kind)
                await self._unary[kind](data, metadata=self._metadata, timeout=ANSWER_S)
            else:
                name = rng.choice(list(_ADMIN))
                metadata = self._operator if rng.random() < 0.7 else self._metadata
                data = fuzzed_message(rng, _ADMIN[name])
                await self._admin[name](data, metadata=metadata, timeout=ANSWER_S)
            return "OK"
        except grpc.aio.AioRpcError as error:
            word = error.code().name
            said = error.details() or ""
            if error.code() in _BAD_CODES or "Traceback" in said or "Exception" in said:
                return f"bad:{word} {said[:300]}"
            return word
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            return "CANCELLED"

    async def _read(
        self,
        rng: random.Random,
        kind: type[Message],
        data: bytes,
        trace: Sequence[tuple[str, str]] = (),
    ) -> None:
        metadata = (*self._metadata, *trace)
        call = self._streamed[kind](data, metadata=metadata, timeout=ANSWER_S)
        async for _ in call:
            if rng.random() < 0.02:
                call.cancel()


class SocketFuzzer(_OverHttp):
    """The WebSocket: a handshake, then frames with fuzzed messages, or mutated frames."""

    name = "websocket"

    async def send(self, rng: random.Random) -> str:
        """A connection with a few messages."""
        reader, writer = await asyncio.open_connection(*self._where, ssl=self._tls)
        nonce = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET /v1/stream HTTP/1.1\r\n{self._head}{self._trace(rng)}"
            f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {nonce}\r\n\r\n"
        )
        try:
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in answer:
                return _http_word(answer)
            for _ in range(rng.randint(1, 4)):
                frame = _frame(rng, self._message(rng))
                broken = rng.random() < (0.02 if self._kinds else 0.2)
                writer.write(mutated(rng, frame) if broken else frame)
            said = b""
            if self._kinds:
                said = await _read_answer(reader)
            writer.write(_frame(rng, b"\x03\xe8", opcode=8))
            said += await _read_all(reader)
            broken = b"Traceback" in said or b"internal error" in said or b"internal_error" in said
            return f"bad:{said[-300:]!r}" if broken else "ended"
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return "closed"
        finally:
            writer.transport.abort()

    def _message(self, rng: random.Random) -> bytes:
        chat = rng.random() < (_CHATS if self._kinds else 0.5)
        kind = "chat" if chat else "completion"
        if self._kinds:
            body = chat_body(rng, self._kinds, chat=chat)
        else:
            body = fuzzed_body(rng, kind)
            kind = rng.choice(["chat", "completion", "cancel", "resume", kind])
        if rng.random() < 0.9 and body.startswith(b"{"):
            name = rng.choice(["a", "b", str(rng.getrandbits(16))])
            body = f'{{"type": "{kind}", "id": "{name}", '.encode() + body[1:]
        return body


async def _read_answer(reader: asyncio.StreamReader) -> bytes:
    """What a server says until an answer ends, or is refused."""
    found = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while b'"end"' not in found and b'"error"' not in found:
                piece = await reader.read(1 << 16)
                if not piece:
                    break
                found += piece
    return found


def _frame(rng: random.Random, payload: bytes, opcode: int | None = None) -> bytes:
    """A masked frame; its opcode is text's, but for a few."""
    if opcode is None:
        opcode = 1 if rng.random() < 0.95 else rng.randrange(16)
    mask = rng.randbytes(4)
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    elif size < 1 << 16:
        head = bytes([0x80 | opcode, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 0x80 | 127]) + size.to_bytes(8, "big")
    repeated = (mask * (size // 4 + 1))[:size]
    coded = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
    return head + mask + coded
