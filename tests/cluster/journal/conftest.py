"""A Redis of its own for the tests of the journal, and a store in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis.asyncio

from cluster.config.deployment import DirectoryConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.journal.store import JournalStore, StreamLife
from tests.cluster.discovery.members import SECRET

LIFE = StreamLife(running_s=60.0, keep_s=20.0)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis.start()
    yield server
    server.stop()


@pytest.fixture
async def raw(server: EmbeddedRedis) -> AsyncIterator[Any]:
    """A client of Redis without the journal; the data is empty."""
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def store(server: EmbeddedRedis, raw: Any) -> AsyncIterator[JournalStore]:
    store = JournalStore.connect(DirectoryConfig(url=server.url), SECRET, LIFE)
    yield store
    await store.close()
