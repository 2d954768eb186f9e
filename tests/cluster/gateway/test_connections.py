"""What every front end's connections have: no delay in the kernel, nothing held back by a proxy."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import grpc.aio
import httpx
from websockets.asyncio.client import connect

from cluster.gateway import grpc_server as gateway_grpc
from cluster.gateway import uvicorn_server as http_server
from cluster.gateway.answers import comments
from cluster.router import event_buffer
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator

BODY = {"prompt": "hello", "stream": True}


def accepted(port):
    """For each connection that this process accepted at `port`, whether small writes wait."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            known = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue
        with known:
            try:
                known.getpeername()
                if known.getsockname()[1] == port:
                    found.append(known.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0)
            except (OSError, IndexError, TypeError):
                continue
    return found


async def test_small_writes_leave_at_once_over_http_and_websocket():
    async with front_end(ScriptedGenerator()) as port, httpx.AsyncClient() as client:
        reply = await client.post(f"http://127.0.0.1:{port}/v1/completions", json=BODY)
        assert reply.headers["x-accel-buffering"] == "no"
        assert reply.headers["cache-control"] == "no-cache"
        async with connect(f"ws://127.0.0.1:{port}/v1/stream"):
            assert accepted(port) == [False, False]


async def test_small_writes_leave_at_once_over_grpc():
    server = await gateway_grpc.start(ScriptedGenerator())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await channel.channel_ready()
            delayed = accepted(server.port)
            assert delayed and not any(delayed)
    finally:
        await server.stop(0)


def test_silence_lasts_ten_seconds_at_most():
    assert event_buffer.HEARTBEAT_S == comments.HEARTBEAT_S == http_server.PING_S == 10.0
