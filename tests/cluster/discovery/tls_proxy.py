"""A Redis behind TLS, which the bundled redis-server lacks: a proxy ends it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from cluster.deploy.embedded_redis import EmbeddedRedis
from tests.certificates import Certificates, serial


class TlsProxy:
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


@asynccontextmanager
async def proxied(
    redis: EmbeddedRedis, own: Certificates, *names: str
) -> AsyncIterator[tuple[TlsProxy, str]]:
    """A Redis that asks for certificates of this authority, and its address."""
    issued = own.issue(*names, file="redis")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=own.authority)
    context.load_cert_chain(issued.certificate, issued.key)
    context.verify_mode = ssl.CERT_REQUIRED
    proxy = TlsProxy(redis.url.removeprefix("unix://"))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=context)
    try:
        yield proxy, f"rediss://localhost:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        proxy.cut()
