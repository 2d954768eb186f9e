"""A router that ends: what runs on WebSockets ends as it would have, and nothing more begins."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cluster.gateway import uvicorn_server as http_server
from cluster.gateway.http_app import create_app
from cluster.gateway.websocket import SocketGateway
from tests.cluster.gateway.http_listener import metrics
from tests.cluster.gateway.test_websocket import PATH, TEXT, failure_among, say, until_ends
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

RESTARTS = 1012


@pytest.fixture
def generator():
    """Eight tokens take most of a second."""
    return ScriptedGenerator(pause_s=0.1)


async def serving(generator):
    app = create_app(generator, metrics)
    server = await http_server.start(app, drain=app.state.drain)
    return server, f"127.0.0.1:{server.port}"


async def code_of(socket):
    """With which code the socket is closed, after whatever else comes."""
    with pytest.raises(ConnectionClosed) as caught:
        async with asyncio.timeout(10):
            while True:
                await socket.recv()
    return caught.value.rcvd.code


async def test_generations_end_as_they_would_have_and_nothing_more_begins(generator):
    server, address = await serving(generator)
    busy, idle = [await connect(f"ws://{address}{PATH}") for _ in range(2)]
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        assert (await client.get("/healthz")).status_code == 200
        await say(busy, TEXT | {"id": "a", "max_tokens": 8})
        await eventually(lambda: bool(generator.started))
        stopping = asyncio.create_task(server.stop(20))
        assert await code_of(idle) == RESTARTS
        assert await failure_among(busy, TEXT | {"id": "b"}) == ("b", 503)
        assert not stopping.done()
        (messages,) = (await until_ends(busy)).values()
        assert messages[-1]["usage"]["completion_tokens"] == 8
        assert await code_of(busy) == RESTARTS
        await asyncio.wait_for(stopping, 5)
    with pytest.raises(OSError, match="Connect call failed"):
        await connect(f"ws://{address}{PATH}")
    assert len(generator.finished) == 1


async def test_requests_longer_than_the_grace_are_ended(generator):
    generator.endless = True
    server, address = await serving(generator)
    socket = await connect(f"ws://{address}{PATH}")
    await say(socket, TEXT | {"id": "a"})
    await eventually(lambda: bool(generator.started))
    stopping = asyncio.create_task(server.stop(0))
    assert await code_of(socket) == RESTARTS
    await asyncio.wait_for(stopping, 10)
    assert len(generator.closed) == 1


async def test_a_message_while_the_socket_closes_is_no_fault(generator):
    """Between the router's close and the client's nothing can be answered any more."""
    inbox, sent, closed = asyncio.Queue(), [], asyncio.Event()

    async def send(message):
        sent.append(message["type"])
        if message["type"] == "websocket.close":
            await closed.wait()

    gateway = SocketGateway(generator, stall_s=5)
    scope = {"type": "websocket", "path": PATH, "headers": []}
    serving = asyncio.create_task(gateway.serve(WebSocket(scope, inbox.get, send)))
    inbox.put_nowait({"type": "websocket.connect"})
    await eventually(lambda: sent == ["websocket.accept"])
    draining = asyncio.create_task(gateway.drain(10))
    await eventually(lambda: "websocket.close" in sent)
    late = json.dumps(TEXT | {"id": "late"})
    inbox.put_nowait({"type": "websocket.receive", "text": late})
    await asyncio.wait_for(serving, 5)
    closed.set()
    await asyncio.wait_for(draining, 5)
    assert sent == ["websocket.accept", "websocket.close"]
    assert not generator.started


async def test_a_client_that_leaves_meanwhile_delays_no_drain(generator):
    generator.endless = True
    server, address = await serving(generator)
    socket = await connect(f"ws://{address}{PATH}")
    await say(socket, TEXT | {"id": "a"})
    await eventually(lambda: bool(generator.started))
    stopping = asyncio.create_task(server.stop(60))
    assert json.loads(await socket.recv())["id"] == "a"
    await socket.close()
    await asyncio.wait_for(stopping, 10)
    assert len(generator.closed) == 1


async def test_a_second_cancel_has_no_answer_before_the_last_message(generator):
    """It is on its way to a slow client, which would take another error of its id for it."""
    inbox, sent, slow = asyncio.Queue(), [], asyncio.Event()

    async def send(message):
        if "text" in message:
            sent.append(json.loads(message["text"]))
            if sent[-1]["type"] == "error":
                await slow.wait()

    def say(**message):
        inbox.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    generator.endless, generator.pause_s = True, 0.005
    gateway = SocketGateway(generator, stall_s=30)
    scope = {"type": "websocket", "path": PATH, "headers": []}
    serving = asyncio.create_task(gateway.serve(WebSocket(scope, inbox.get, send)))
    inbox.put_nowait({"type": "websocket.connect"})
    say(**TEXT, id="a")
    await eventually(lambda: sent)
    say(type="cancel", id="a")
    await eventually(lambda: sent[-1]["type"] == "error")
    say(type="cancel", id="a")
    say(type="cancel", id="never")
    await eventually(lambda: sent[-1]["id"] == "never")
    slow.set()
    inbox.put_nowait({"type": "websocket.disconnect"})
    await asyncio.wait_for(serving, 10)
    errors = [(one["id"], one["error"]["code"]) for one in sent if one["type"] == "error"]
    assert errors == [("a", "cancelled"), ("never", "not_found")]
