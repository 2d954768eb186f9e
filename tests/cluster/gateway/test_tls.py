"""The front ends over TLS: what is refused and counted, and a renewal under a running stream."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from cluster.api import Tokens
from cluster.gateway import grpc_server, uvicorn_server
from cluster.gateway.http_app import create_app
from cluster.gateway.uvicorn_server import HttpTls
from engine.errors import Unavailable
from protos.wire.certificates import ServerCertificate
from protos.wire.refusals import RefusedConnections
from protos.wire.tls import Reloading, front_end_tls
from tandem_client import Client, RouterAddress
from tests.certificates import Certificates, serial
from tests.cluster.gateway.http_listener import TEXT, metrics
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

STREAM = {"prompt": "hello", "stream": True}


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator(endless=True, pause_s=0.01)


class _TlsFrontEnd:
    """An HTTP front end with TLS, and what it refused."""

    def __init__(self, tls: Reloading[ServerCertificate], **bounds: Any) -> None:
        self.refused: list[str] = []
        self.port = 0
        self.refusals = RefusedConnections("http", self.refused.append)
        self.tls = HttpTls(lambda: tls.get().context, **bounds)


@asynccontextmanager
async def http_front_end(
    generator: ScriptedGenerator, tls: Reloading[ServerCertificate], **bounds: Any
) -> AsyncIterator[_TlsFrontEnd]:
    front_end = _TlsFrontEnd(tls, **bounds)
    app = create_app(generator, metrics)
    server = await uvicorn_server.start(
        app, grace_s=1, tls=front_end.tls, refusals=front_end.refusals
    )
    front_end.port = server.port
    try:
        yield front_end
    finally:
        await server.stop()


@asynccontextmanager
async def grpc_front_end(
    generator: ScriptedGenerator, tls: Reloading[ServerCertificate]
) -> AsyncIterator[str]:
    server = await grpc_server.start(generator, tls=tls)
    try:
        yield f"localhost:{server.port}"
    finally:
        await server.stop(0)


async def shown(port: int, context: ssl.SSLContext) -> object:
    """The serial number of the certificate that a new connection gets."""

    def shake() -> object:
        with (
            socket.create_connection(("localhost", port), 5) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as encrypted,
        ):
            return serial(encrypted.getpeercert())

    return await asyncio.to_thread(shake)


async def said(port: int, text: bytes) -> bytes:
    """What a plain connection gets that says this."""

    def speak() -> bytes:
        with socket.create_connection(("localhost", port), 5) as plain:
            plain.sendall(text)
            plain.shutdown(socket.SHUT_WR)
            return plain.recv(1 << 16)

    return await asyncio.to_thread(speak)


async def test_http_answers_over_tls(own: Certificates) -> None:
    generator = ScriptedGenerator()
    async with http_front_end(generator, front_end_tls(own.issue().identity)) as front_end:
        async with httpx.AsyncClient(verify=own.trusting()) as client:
            for _ in range(2):  # on one connection
                reply = await client.post(f"https://localhost:{front_end.port}{TEXT}", json=STREAM)
                assert reply.text.count("data: ") == 6
        address = f"wss://localhost:{front_end.port}/v1/stream"
        async with connect(address, ssl=own.trusting()) as connection:
            assert await connection.ping()
    assert front_end.refused == []


async def test_a_plain_connection_is_refused_and_counted(own: Certificates) -> None:
    async with http_front_end(
        ScriptedGenerator(), front_end_tls(own.issue().identity)
    ) as front_end:
        assert b"HTTP" not in await said(front_end.port, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        await eventually(lambda: front_end.refused == ["tls"])


async def test_clients_refuse_a_foreign_an_expired_and_a_misnamed_certificate(
    own: Certificates, tmp_path: Path
) -> None:
    """The front end hears of it, and counts."""
    tls = front_end_tls(own.issue().identity, poll_s=0)
    async with http_front_end(ScriptedGenerator(), tls) as front_end:
        foreign = Certificates(tmp_path, "foreign").trusting()
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            await shown(front_end.port, foreign)
        own.issue("elsewhere.test")
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await shown(front_end.port, own.trusting())
        await eventually(lambda: front_end.refused == ["tls", "tls"])


async def test_a_silent_client_is_cut_off_and_one_too_many_takes_the_oldest_place(
    own: Certificates,
) -> None:
    tls = front_end_tls(own.issue().identity)
    async with http_front_end(ScriptedGenerator(), tls, timeout_s=2.0, most=2) as front_end:
        silent = [socket.create_connection(("localhost", front_end.port)) for _ in range(3)]
        await eventually(lambda: front_end.refused == ["too_many", "timeout", "timeout"])
        for one in silent:
            one.settimeout(30)
            assert await asyncio.to_thread(one.recv, 1) == b""
            one.close()
        await shown(front_end.port, own.trusting())
        with socket.create_connection(("localhost", front_end.port)):
            pass
        await eventually(lambda: front_end.refused[3:] == ["closed"])


async def test_refusals_leave_no_traceback(
    own: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    loop, faults = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    async with http_front_end(
        ScriptedGenerator(), front_end_tls(own.issue().identity)
    ) as front_end:
        for text in (b"\x16\x03\x01", b"\x00" * 100, b"GET / HTTP/1.0\r\n\r\n", b""):
            await said(front_end.port, text)
        await eventually(lambda: len(front_end.refused) == 4)
    assert not faults
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_http_stream_goes_on_while_new_connections_get_the_renewed_certificate(
    own: Certificates, generator: ScriptedGenerator
) -> None:
    tls = front_end_tls(own.issue().identity, poll_s=0)
    async with http_front_end(generator, tls) as front_end:
        url = f"https://localhost:{front_end.port}{TEXT}"
        async with (
            httpx.AsyncClient(verify=own.trusting()) as client,
            client.stream("POST", url, json=STREAM) as answer,
        ):
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            before = await shown(front_end.port, own.trusting())
            own.issue()
            assert await shown(front_end.port, own.trusting()) != before
            for _ in range(20):
                await anext(lines)
        assert front_end.refused == []


async def tokens_of(client: Client) -> AsyncIterator[Tokens]:
    async for event in client.generate("hello", ignore_eos=True):
        if isinstance(event, Tokens):
            yield event


async def test_a_grpc_stream_goes_on_while_new_connections_get_the_renewed_certificate(
    own: Certificates, generator: ScriptedGenerator
) -> None:
    tls = front_end_tls(own.issue().identity, poll_s=0)
    async with grpc_front_end(generator, tls) as address:
        port = int(address.rpartition(":")[2])
        async with Client(RouterAddress.at(address, own.authority)) as client:
            tokens = tokens_of(client)
            assert (await anext(tokens)).index == 0
            before = await shown(port, own.trusting())
            own.issue()
            assert await shown(port, own.trusting()) != before
            for index in range(1, 20):
                assert (await anext(tokens)).index == index
            await tokens.aclose()  # type: ignore[attr-defined]


async def test_grpc_refuses_plain_connections_and_clients_refuse_wrong_certificates(
    own: Certificates, tmp_path: Path
) -> None:
    foreign = Certificates(tmp_path, "foreign")
    async with grpc_front_end(
        ScriptedGenerator(), front_end_tls(own.issue("localhost").identity)
    ) as address:
        misnamed = address.replace("localhost", "127.0.0.1")
        wrong = (
            RouterAddress.at(f"grpc://{address}", own.authority),
            RouterAddress.at(address, foreign.authority),
            RouterAddress.at(misnamed, own.authority),
        )
        for one in wrong:
            async with Client(one) as client:
                with pytest.raises(Unavailable):
                    await client.model()
        async with Client(RouterAddress.at(address, own.authority)) as client:
            assert (await client.model()).name == "demo"


@pytest.mark.parametrize("names", [("*.tandem.test",), ("tandem.test",), ("127.0.0.1",)])
async def test_the_launcher_trusts_exactly_the_certificate_that_it_configured(
    own: Certificates, names: tuple[str, ...]
) -> None:
    tls = front_end_tls(own.issue(*names).identity)
    other = front_end_tls(own.issue(*names, file="other").identity)
    async with grpc_front_end(ScriptedGenerator(), tls) as address:
        async with Client(RouterAddress(address, tls.get().chain, tls.get().name)) as client:
            assert (await client.model()).name == "demo"
        async with Client(RouterAddress(address, other.get().chain, other.get().name)) as client:
            with pytest.raises(Unavailable):
                await client.model()
