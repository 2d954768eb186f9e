"""A Redis of its own for the tests of the journal, and a store in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis.asyncio

from cluster.config.deployment import DirectoryConfig
from cluster.config.tls import RedisTlsConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_client import open_client
from cluster.journal.store import JournalStore, StreamLife
from protos.wire.secret import ClusterSecret
from tests.cluster.discovery.members import SECRET

LIFE = StreamLife(running_s=60.0, keep_s=20.0)
# A busy machine must not look like a Redis that is away, or like a dead router.
TIMEOUT_S, LEASE_S = 1.0, 2.0


def store_at(
    server: EmbeddedRedis, secret: ClusterSecret = SECRET, life: StreamLife = LIFE
) -> JournalStore:
    config = DirectoryConfig(url=server.url)
    client = open_client(config, TIMEOUT_S, RedisTlsConfig(), text=False)
    return JournalStore(client, secret, life, timeout_s=TIMEOUT_S, lease_s=LEASE_S)


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
    store = store_at(server)
    yield store
    await store.close()
