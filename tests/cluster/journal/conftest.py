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
# Seconds for a call, and a router's lease. A busy machine must not look like a Redis that is away,
# or like a dead router. They are brief where a test waits for their ends.
PATIENT, BRIEF = (10.0, 60.0), (1.0, 2.0)


def store_at(
    server: EmbeddedRedis,
    secret: ClusterSecret = SECRET,
    life: StreamLife = LIFE,
    deadlines: tuple[float, float] = PATIENT,
) -> JournalStore:
    timeout_s, lease_s = deadlines
    client = open_client(DirectoryConfig(url=server.url), timeout_s, RedisTlsConfig(), text=False)
    return JournalStore(client, secret, life, timeout_s=timeout_s, lease_s=lease_s)


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
def deadlines() -> tuple[float, float]:
    """Those of `store`."""
    return PATIENT


@pytest.fixture
async def store(
    server: EmbeddedRedis, raw: Any, deadlines: tuple[float, float]
) -> AsyncIterator[JournalStore]:
    store = store_at(server, deadlines=deadlines)
    yield store
    await store.close()
