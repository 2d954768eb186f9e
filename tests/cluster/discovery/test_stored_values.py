"""Values that a writer of Redis put there: no process fails by them, and the log has few lines."""

from __future__ import annotations

import logging

import pytest
import redis.asyncio

from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from cluster.discovery.stored_values import read_desired
from tests.cluster.discovery.members import record

NO_TEXT = b"\xff\xfe\x80"


async def test_bytes_that_are_no_text_hide_no_member(
    directory: Directory, server: EmbeddedRedis
) -> None:
    await directory.register(record("good"))
    await directory.add_api_key("digest", "acme")
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.sadd("tandem:replicas", NO_TEXT, b"bad")
        await client.set("tandem:replica:bad", NO_TEXT)
        await client.zadd("tandem:left", {NO_TEXT: 1.0})
        for name in ("desired", "stop", "rollout", "rollout:state", "api_keys:version"):
            await client.set(f"tandem:{name}", NO_TEXT)
        for name in ("routers", "api_keys", "operator_keys", "metrics_keys", "key_seals"):
            await client.hset(f"tandem:{name}", NO_TEXT, NO_TEXT)
    assert await directory.members() == [record("good")]
    assert await directory.desired() == {}
    assert await directory.listen_for_stop("launcher") is not None
    assert await directory.take_rollout() is not None
    assert await directory.rollout_state() is not None
    assert (await directory.exchange("router", "state"))["router"] == "state"
    version, keys = await directory.api_keys()
    assert version == await directory.api_keys_version() is not None
    assert [entry.owner for entry in keys if entry.sealed] == ["acme"]


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", '{"prefill": "x"}', '{"decode": Infinity}', '{"decode": NaN}', "[" * 100_000],
)
def test_counts_that_cannot_be_read_are_none(text: str) -> None:
    assert read_desired(text) == {}


def test_unreadable_counts_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(100):
        read_desired("no counts")
    assert len(caplog.records) <= 1
