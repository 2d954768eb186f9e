"""A client that writes and reads bytes, and limits that are soon reached."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from cluster.gateway.connections.limits import ConnectionLimits

LIMITS = ConnectionLimits(linger_s=5.0)
IMPATIENT = replace(LIMITS, head_s=0.3, idle_s=1)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
WAIT_S = 30.0


@asynccontextmanager
async def connected(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader):
    """Everything until the server closes; a reset counts as the end."""
    found = b""
    with suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(1 << 16), WAIT_S):
            found += piece
    return found


async def told(port, *pieces):
    """What a client gets that sends these pieces and never closes; writing ends with a reset."""
    async with connected(port) as (reader, writer):
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        return await answer(reader)


def refused(raw, status, code):
    """Check an answer in OpenAI's error form, after which the connection is closed."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), raw[:200]
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == code
