"""The requests of 4 MiB that cost a router most, and a client that sends them."""

from __future__ import annotations

import json
from collections.abc import Callable

import grpc
import httpx
from websockets.sync.client import connect

from cluster.router.server import RouterServer
from tandem_client.protos import inference_pb2 as wire

MOST_BYTES = 4 * 1024 * 1024
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def filled(head: str, unit: str, tail: str) -> bytes:
    """A body of 4 MiB: `unit` again and again between head and tail."""
    return (head + unit * ((MOST_BYTES - len(head) - len(tail)) // len(unit)) + tail).encode()


def prompt(**fields: object) -> str:
    """The beginning of a completion's body, up to the brace."""
    return json.dumps({"prompt": "a", "max_tokens": 1, **fields})[:-1]


HTTP: dict[str, tuple[str, Callable[[], bytes]]] = {
    "stop_token_ids": (
        TEXT,
        lambda: filled(prompt(n=128) + ',"stop_token_ids":[', "1,", "1]}"),
    ),
    "prompts of one token": (TEXT, lambda: filled('{"prompt":[', "[1],", "[1]]}")),
    "prompts of a letter": (TEXT, lambda: filled('{"prompt":[', '"a",', '"a"]}')),
    "token ids": (TEXT, lambda: filled('{"prompt":[', "1,", "1]}")),
    "a text": (TEXT, lambda: filled('{"max_tokens":1,"prompt":"', "word ", '"}')),
    "messages": (CHAT, lambda: filled('{"messages":[', '{"role":"user","content":"a"},', "{}]}")),
    "empty messages": (CHAT, lambda: filled('{"messages":[', "{},", "{}]}")),
    "parts": (
        CHAT,
        lambda: filled(
            '{"messages":[{"role":"user","content":[', '{"type":"text","text":""},', "{}]}]}"
        ),
    ),
    "logit_bias": (
        TEXT,
        lambda: (
            prompt() + ',"logit_bias":{' + ",".join(f'"{i}":1' for i in range(370_000)) + "}}"
        ).encode(),
    ),
    "stop": (TEXT, lambda: filled(prompt(n=128) + ',"stop":[', '"a",', '"a"]}')),
    "a stop string": (TEXT, lambda: filled(prompt(n=128) + ',"stop":"', "a", '"}')),
    "an unknown field": (TEXT, lambda: filled('{"', "prom", '":1}')),
    "stream_options": (
        TEXT,
        lambda: (
            prompt(stream=True)
            + ',"stream_options":{'
            + ",".join(f'"{i}":1' for i in range(370_000))
            + "}}"
        ).encode(),
    ),
    "a number": (TEXT, lambda: filled(prompt() + ',"temperature":1.', "3", "}")),
    "a model": (TEXT, lambda: filled(prompt() + ',"model":"', "a b ", '"}')),
    "nesting": (TEXT, lambda: filled(prompt() + ',"metadata":', "[", "}")),
    "metadata": (TEXT, lambda: filled(prompt() + ',"metadata":[', "[],", "[]]}")),
}

GRPC: dict[str, Callable[[], bytes]] = {
    "messages": lambda: _message(6, b"\x0a\x00" * (MOST_BYTES // 2 - 16)),
    "stop": lambda: _message(7, b"\x5a\x00" * (MOST_BYTES // 2 - 16)),
    "stop_token_ids": lambda: _message(7, _message(12, b"\x01" * (MOST_BYTES - 32))),
    "token ids": lambda: _message(5, _message(1, b"\x01" * (MOST_BYTES - 32))),
    "a text": lambda: _message(4, b"word " * (MOST_BYTES // 5 - 16)),
    "logit_bias": lambda: wire.GenerateRequest(
        text="a", sampling=wire.Sampling(logit_bias=dict.fromkeys(range(280_000), 1.0))
    ).SerializeToString(),
    "a tenant": lambda: b"\x22\x01a" + _message(9, b"a b " * (MOST_BYTES // 4 - 16)),
    "score": lambda: b"\x2a\x00" * (MOST_BYTES // 2 - 16),
    "no message": lambda: b"\xff" * (MOST_BYTES - 16),
}


def _message(field: int, body: bytes) -> bytes:
    """A field of bytes of a protobuf message."""
    size, length = len(body), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + body


class Stranger:
    """A client of a router that sends bytes as they are; each call waits for a status."""

    def __init__(self, router: RouterServer) -> None:
        self._http = f"http://{router.http_address}"
        self._socket = f"ws://{router.http_address}/v1/stream"
        self._grpc = router.grpc_address

    def post(self, path: str, body: bytes) -> tuple[int, str]:
        """The status of a reply over HTTP, and its body."""
        headers = {"content-type": "application/json"}
        reply = httpx.post(self._http + path, content=body, headers=headers, timeout=60)
        return reply.status_code, reply.text

    def send(self, path: str, body: bytes) -> tuple[int, str]:
        """The status of the first message over a WebSocket (200 if it is no error), and it."""
        kind = "chat" if path == CHAT else "completion"
        text = f'{{"id":"1","type":"{kind}",{body.decode()[1:]}'
        with connect(self._socket, max_size=None, compression=None) as socket:
            socket.send(text[:MOST_BYTES])
            found = str(socket.recv(60))
        return json.loads(found).get("status", 200), found

    def call(self, method: str, message: bytes) -> tuple[grpc.StatusCode, str]:
        """The status of a call, and its text."""
        with grpc.insecure_channel(self._grpc) as channel:
            try:
                for _ in channel.unary_stream(method)(message, timeout=60):
                    pass
            except grpc.RpcError as error:
                return error.code(), error.details()
        return grpc.StatusCode.OK, ""
