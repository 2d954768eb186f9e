"""A failed connection to Redis is Unavailable, whatever the event loop says."""

from __future__ import annotations

import asyncio

import pytest

from cluster.config.deployment import DirectoryConfig
from cluster.config.tls import RedisTlsConfig
from cluster.discovery.redis_client import answered, open_client
from engine.errors import ConfigError, Unavailable


async def write_after_a_reset():
    """A connection that was reset, and a write on it, as a client does that has not heard of it."""

    async def accept(_reader, writer):
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.transport.abort()
    await asyncio.sleep(0.05)

    async def command():
        writer.writelines([b"PING"])
        await writer.drain()

    try:
        with pytest.raises(Unavailable, match="Redis"):
            await answered(command(), 1.0)
    finally:
        server.close()


def test_a_reset_connection_is_unavailable_with_uvloop():
    """Ray installs uvloop in its workers."""
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write_after_a_reset())


async def test_another_fault_stays_what_it_is():
    async def command():
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="ours"):
        await answered(command(), 1.0)


@pytest.mark.parametrize("url", ["redis://:hidden@h:999999", "http://:hidden@h:1", "hidden"])
def test_a_wrong_address_is_refused_without_its_password(url):
    with pytest.raises(ConfigError, match=r"directory\.url") as refused:
        open_client(DirectoryConfig(url=url), 1.0, RedisTlsConfig())
    assert "hidden" not in refused.value.message
