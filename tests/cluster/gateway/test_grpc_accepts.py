"""gRPC hands over waiting calls within few passes of the event loop, however busy the loop is.

grpc.aio takes one call at a time. Where each one needs many passes, calls wait in front of a busy
router, and no admission sees them (decision 38).
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from cluster.gateway import grpc_server
from tests.cluster.scripted_generator import ScriptedGenerator

CALLS = 60
PASS_S = 0.005
# 1.5 to 2.3 where grpcio is as it should be, 4.6 and more in grpcio 1.84 and 1.85.
MOST_PASSES = 3.5


async def test_a_waiting_call_needs_few_passes_of_the_loop():
    loop, passes, begun, all_begun = asyncio.get_running_loop(), 0, [], asyncio.Event()

    async def answer(request: bytes, context: Any) -> None:
        begun.append(passes)
        if len(begun) == CALLS:
            all_begun.set()

    server = grpc.aio.server()
    method = grpc.unary_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"M": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def busy() -> None:
        nonlocal passes
        passes += 1
        time.sleep(PASS_S)
        if not all_begun.is_set():
            loop.call_soon(busy)

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, ThreadPoolExecutor(1) as thread:
        ready = grpc.channel_ready_future(channel)
        await loop.run_in_executor(thread, ready.result, 60)
        call = channel.unary_stream("/S/M")
        loop.call_soon(busy)
        calls = await loop.run_in_executor(thread, lambda: [call(b"") for _ in range(CALLS)])
        await asyncio.wait_for(all_begun.wait(), 60)
        for one in calls:
            one.cancel()
    await server.stop(0)
    assert (begun[-1] - begun[0]) / (CALLS - 1) < MOST_PASSES


async def test_a_connection_that_says_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(grpc_server, "HANDSHAKE_S", 0.3)
    server = await grpc_server.start(ScriptedGenerator())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(30):
        await reader.read()  # the server's settings, and the end
    writer.close()
    await server.stop(0)
