"""Clients that leave, replies that end early, and the end of the HTTP server."""

from __future__ import annotations

import socket
import time

import httpx
import pytest

from cluster.gateway.http_app import create_app
from cluster.gateway.uvicorn_server import start
from engine.errors import ConfigError
from tests.cluster.gateway.http_listener import (
    CHAT,
    HELLO,
    TEXT,
    error_of,
    front_end,
    metrics,
    opened,
)
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pause_s", [0.001, 30.0])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_client_that_disconnects_cancels(generator, path, pause_s, stream):
    generator.endless, generator.pause_s = True, pause_s
    prompt = HELLO if path == CHAT else {"prompt": ["a", "b"]}
    count = 1 if path == CHAT else 2
    async with front_end(generator) as port:
        async with opened(port, path, prompt | {"stream": stream}):
            await eventually(lambda: len(generator.started) == count)
            before = time.monotonic()
        await eventually(lambda: len(generator.closed) == count)
        assert time.monotonic() - before < 10
        assert not generator.finished


async def test_a_client_that_stops_reading_is_let_go(generator):
    generator.endless = True
    async with (
        front_end(generator, stall_s=0.3) as port,
        opened(port, CHAT, HELLO | {"stream": True}) as (_, writer),
    ):
        writer.transport.pause_reading()
        await eventually(lambda: len(generator.closed) == 1)


async def test_a_client_that_leaves_while_it_sends(generator):
    async with front_end(generator) as port:
        async with opened(port, CHAT, HELLO, length=1000):
            pass
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}{CHAT}"
            assert (await client.post(url, json=HELLO)).status_code == 200
    assert len(generator.requests) == 1


async def test_a_reply_that_ends_early_is_an_error(generator):
    async def cut_short(request):
        async for event in ScriptedGenerator().generate(request):
            if type(event).__name__ != "Summary":
                yield event

    generator.generate = cut_short
    async with front_end(generator) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}{CHAT}"
        error_of(await client.post(url, json=HELLO), 500)
        text = (await client.post(url, json=HELLO | {"stream": True})).text
        assert "the reply ended early" in text
        assert "[DONE]" not in text


async def test_a_taken_port_is_one_clear_line(generator):
    app = create_app(generator, metrics)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            await start(app, port=port)
    assert caught.value.message == f"cannot listen on 127.0.0.1:{port}: address already in use"
    with pytest.raises(ConfigError):
        await start(app, host="203.0.113.1")
    with pytest.raises(ConfigError):
        await start(app, host="no.such.host.invalid")


async def test_two_servers_share_a_port_only_if_asked(generator):
    app = create_app(generator, metrics)
    one = await start(app, reuse_port=True)
    two = await start(app, port=one.port, reuse_port=True)
    assert one.port == two.port
    with pytest.raises(ConfigError):
        await start(app, port=one.port)
    await one.stop()
    await two.stop()


@pytest.mark.parametrize("grace_s", [0, 1])
async def test_stopping_ends_streams_after_the_grace(generator, grace_s):
    generator.endless, generator.pause_s = True, 0.01
    server = await start(create_app(generator, metrics), grace_s=30)
    async with opened(server.port, CHAT, HELLO | {"stream": True}):
        await eventually(lambda: len(generator.started) == 1)
        before = time.monotonic()
        await server.stop(grace_s)
        assert grace_s <= time.monotonic() - before < grace_s + 10
        assert len(generator.closed) == 1
