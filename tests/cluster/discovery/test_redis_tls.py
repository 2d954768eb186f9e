"""The directory in a Redis behind TLS, which the bundled redis-server lacks: a proxy ends it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from cluster.config.deployment import DirectoryConfig
from cluster.config.tls import RedisTlsConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery import redis_client
from cluster.discovery.redis_directory import Directory
from engine.errors import ConfigError, Unavailable
from protos.wire.tls import client_tls
from tests.certificates import Certificates, serial
from tests.cluster.discovery.members import SECRET


class _TlsProxy:
    """Passes connections on to a Unix socket; `seen` has the serial numbers that clients showed."""

    def __init__(self, path: str) -> None:
        self.seen: list[object] = []
        self._path = path
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append(serial(writer.get_extra_info("peercert")))
        redis_reader, redis_writer = await asyncio.open_unix_connection(self._path)
        self._writers += [writer, redis_writer]
        with suppress(OSError):
            await asyncio.gather(_pass(reader, redis_writer), _pass(redis_reader, writer))

    def cut(self) -> None:
        """End all connections."""
        while self._writers:
            self._writers.pop().transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.transport.abort()


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def proxied(
    redis: EmbeddedRedis, own: Certificates, *names: str
) -> AsyncIterator[tuple[_TlsProxy, str]]:
    """A Redis that asks for certificates of this authority, and its address."""
    issued = own.issue(*names, file="redis")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=own.authority)
    context.load_cert_chain(issued.certificate, issued.key)
    context.verify_mode = ssl.CERT_REQUIRED
    proxy = _TlsProxy(redis.url.removeprefix("unix://"))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=context)
    try:
        yield proxy, f"rediss://localhost:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        proxy.cut()


@asynccontextmanager
async def directory_at(url: str, tls: RedisTlsConfig | None) -> AsyncIterator[Directory]:
    directory = Directory.connect(DirectoryConfig(url=url), SECRET, tls)
    try:
        yield directory
    finally:
        await directory.close()


async def test_the_directory_is_reached_with_certificates_on_both_sides(
    server: EmbeddedRedis, own: Certificates
) -> None:
    async with proxied(server, own) as (_, url), directory_at(url, own.redis()) as directory:
        await directory.ping()


async def test_a_foreign_and_a_misnamed_redis_are_refused(
    server: EmbeddedRedis, own: Certificates, tmp_path: Path
) -> None:
    foreign = Certificates(tmp_path, "foreign")
    async with proxied(server, own) as (proxy, url):
        for tls in (None, foreign.redis()):
            # An address cannot switch the verification off.
            async with directory_at(f"{url}?ssl_cert_reqs=none", tls) as directory:
                with pytest.raises(
                    Unavailable, match=r"of Redis is not trusted: .* tls.redis.authority"
                ):
                    await directory.ping()
        assert not proxy.seen
    async with (
        proxied(server, own, "elsewhere.test") as (_, url),
        directory_at(url, own.redis()) as directory,
    ):
        with pytest.raises(Unavailable, match="Hostname mismatch"):
            await directory.ping()


async def test_redis_refuses_a_client_without_a_certificate(
    server: EmbeddedRedis, own: Certificates
) -> None:
    async with (
        proxied(server, own) as (proxy, url),
        directory_at(url, RedisTlsConfig(own.authority)) as directory,
    ):
        with pytest.raises(Unavailable):
            await directory.ping()
        assert not proxy.seen


async def test_a_renewed_certificate_is_shown_by_the_next_connection(
    server: EmbeddedRedis, own: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "client_tls", partial(client_tls, poll_s=0))
    async with proxied(server, own) as (proxy, url), directory_at(url, own.redis()) as directory:
        await directory.ping()
        own.issue()
        await directory.ping()  # on the same connection
        assert len(proxy.seen) == 1
        proxy.cut()
        with suppress(Unavailable):
            await directory.ping()
        await directory.ping()
        assert len(set(proxy.seen)) == len(proxy.seen) == 2


def test_a_missing_authority_is_a_config_error() -> None:
    config = DirectoryConfig(url="rediss://localhost:1/0")
    with pytest.raises(ConfigError, match="/no/ca: cannot be read"):
        Directory.connect(config, SECRET, RedisTlsConfig("/no/ca"))
