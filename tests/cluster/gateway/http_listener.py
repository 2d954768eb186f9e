"""A running HTTP front end for tests, and a raw client to it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from cluster.gateway.connections.limits import ConnectionLimits
from cluster.gateway.http_app import create_app
from cluster.gateway.uvicorn_server import start
from tests.cluster.scripted_generator import ScriptedGenerator

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
JSON = "Content-Type: application/json"
AS_JSON = {"Content-Type": "application/json"}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def metrics() -> tuple[bytes, str]:
    return b"tandem_up 1\n", "text/plain; version=0.0.4"


@asynccontextmanager
async def front_end(
    generator: ScriptedGenerator, limits: ConnectionLimits | None = None, **options: Any
) -> AsyncIterator[int]:
    """The port of a server over `generator`."""
    app = create_app(generator, metrics, **options)
    server = await start(app, grace_s=1, limits=limits)
    try:
        yield server.port
    finally:
        await server.stop()


@asynccontextmanager
async def asking(generator: ScriptedGenerator, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server over `generator`."""
    async with (
        front_end(generator, **options) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=AS_JSON) as client,
    ):
        yield client


def error_of(response: httpx.Response, status: int) -> dict[str, str | None]:
    """The error of a reply with that status, in OpenAI's form and one line."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error


@asynccontextmanager
async def opened(
    port: int, path: str, body: Any, length: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw connection on which `body` has been posted; reset at the end, as by a killed client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    size = len(data) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {size}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    try:
        yield reader, writer
    finally:
        reset = struct.pack("ii", 1, 0)
        with suppress(OSError, AttributeError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
