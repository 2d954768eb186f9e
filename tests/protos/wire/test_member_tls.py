"""The wire over mutual TLS: both the certificate and the secret are needed, and both may be new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import Unavailable
from protos.wire.certificates import Identity, MemberContexts, client_context
from protos.wire.client import Connector
from protos.wire.secret import ClusterSecret
from protos.wire.streams import FrameStream
from protos.wire.tls import Reloading, member_tls
from tests.certificates import NAME, Certificates
from tests.eventually import eventually
from tests.protos.wire.rig import MOST_BYTES, OTHER_SECRET, SECRET, echoing, raw

Tls = Reloading[MemberContexts]


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def tls_of(certificates: Certificates, poll_s: float = 1.0) -> Tls:
    return member_tls(certificates.issue().identity, certificates.authority, NAME, poll_s)


@asynccontextmanager
async def stream_by(connector: Connector, address: str) -> AsyncIterator[FrameStream]:
    stream = FrameStream(MOST_BYTES)
    await connector.connect(address, "calls", stream.wire)
    try:
        yield stream
    finally:
        stream.close()
        await asyncio.wait_for(stream.ended(), 5)


def dialling(tls: Tls, secret: ClusterSecret = SECRET, name: str = NAME) -> Connector:
    return Connector(secret, lambda: tls.get().client, name)


async def echo(stream: FrameStream, message: bytes) -> bytes:
    await stream.write(message)
    return await asyncio.wait_for(stream.read(), 5)


async def test_a_stranger_to_the_certificate_or_to_the_secret_is_refused_and_counted(
    own: Certificates, tmp_path: Path
) -> None:
    tls, foreign = tls_of(own), Certificates(tmp_path, "foreign")
    late, other = own.issue(file="late", expired=True), foreign.issue()

    def showing(identity: Identity | None) -> Connector:
        return Connector(SECRET, lambda: client_context(own.authority, identity), NAME)

    async with echoing(ssl=lambda: tls.get().server) as (server, heard):
        for connector, reason in (
            (Connector(SECRET), "tls"),
            (showing(None), "tls"),
            (showing(late.identity), "tls"),
            (showing(other.identity), "tls"),
            (dialling(tls, OTHER_SECRET), "closed"),
        ):
            before = len(heard.refused)
            with pytest.raises(Unavailable, match="no connection"):
                async with stream_by(connector, server.address):
                    pass
            await eventually(lambda: heard.refused[before:] == [reason])  # noqa: B023
        async with stream_by(dialling(tls), server.address) as stream:
            assert await echo(stream, b"hello") == b"hello"


async def test_a_member_refuses_a_server_of_another_authority_or_name_or_without_tls(
    own: Certificates, tmp_path: Path
) -> None:
    mine, others = tls_of(own), tls_of(Certificates(tmp_path, "foreign"))
    async with echoing(ssl=lambda: others.get().server) as (impostor, _):
        with pytest.raises(Unavailable, match="certificate verify failed"):
            async with stream_by(dialling(mine), impostor.address):
                pass
    async with echoing(ssl=lambda: mine.get().server) as (server, _):
        with pytest.raises(Unavailable, match="Hostname mismatch"):
            async with stream_by(dialling(mine, name="elsewhere.test"), server.address):
                pass
    async with echoing() as (plain, heard):
        with pytest.raises(Unavailable, match="no connection"):
            async with stream_by(dialling(mine), plain.address):
                pass
        assert not heard.heard


async def test_a_stream_goes_on_while_new_connections_get_the_renewed_certificate(
    own: Certificates,
) -> None:
    tls = tls_of(own, poll_s=0)
    async with echoing(ssl=lambda: tls.get().server) as (server, heard):
        async with stream_by(dialling(tls), server.address) as running:
            assert await echo(running, b"before") == b"before"
            before = tls.get()
            own.issue()
            async with stream_by(dialling(tls), server.address) as later:
                assert tls.get() is not before
                assert await echo(later, b"later") == b"later"
            assert await echo(running, b"after") == b"after"
        assert heard.refused == []


async def test_a_silent_stranger_is_in_nobodys_way(own: Certificates) -> None:
    tls = tls_of(own)
    async with (
        echoing(ssl=lambda: tls.get().server, most_strangers=2) as (server, heard),
        raw(server.address),
        raw(server.address),
        raw(server.address),
    ):
        await eventually(lambda: heard.refused == ["too_many"])
        async with stream_by(dialling(tls), server.address) as stream:
            assert await echo(stream, b"hello") == b"hello"
