"""A Redis of its own for the tests of the directory, and a directory in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from cluster.config.deployment import DirectoryConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from tests.cluster.discovery.members import SECRET


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis.start()
    yield server
    server.stop()


@pytest.fixture
def lease_s() -> float:
    """Seconds. A record of a busy machine outlasts its test, unless the test is about its end."""
    return 30.0


@pytest.fixture
async def directory(server: EmbeddedRedis, lease_s: float) -> AsyncIterator[Directory]:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.flushall()
    config = DirectoryConfig(url=server.url, lease_s=lease_s, heartbeat_s=lease_s / 4)
    directory = Directory.connect(config, SECRET)
    yield directory
    await directory.close()
