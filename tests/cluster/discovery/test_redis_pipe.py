"""Scripts over a connection of their own: logins, faults, and answers in their order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from cluster.config.deployment import DirectoryConfig
from cluster.config.tls import RedisTlsConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_client import address_of, answered, open_client
from cluster.discovery.redis_pipe import RedisAddress, RedisScript
from engine.errors import Unavailable
from tests.certificates import Certificates
from tests.cluster.discovery.tls_proxy import proxied

ECHO = "return ARGV[1] .. ':' .. #ARGV[2]"


@asynccontextmanager
async def scripted(
    url: str, script: str = ECHO, tls: RedisTlsConfig | None = None
) -> AsyncIterator[RedisScript]:
    client = open_client(DirectoryConfig(url=url), 5.0, tls or RedisTlsConfig(), text=False)
    opened = RedisScript(address_of(client), script)
    try:
        yield opened
    finally:
        opened.close()
        await client.aclose()


async def call(script: RedisScript, *args: Any, timeout_s: float = 5.0) -> bytes:
    return await answered(script.call(args), timeout_s)


@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_a_script_gets_its_arguments_and_gives_its_answer(
    server: EmbeddedRedis, size: int
) -> None:
    async with scripted(server.url) as echo:
        for number in range(3):
            assert await call(echo, number, b"x" * size) == b"%d:%d" % (number, size)


async def test_calls_in_parallel_get_their_own_answers(server: EmbeddedRedis) -> None:
    async with scripted(server.url) as echo:
        answers = await asyncio.gather(*(call(echo, number, b"") for number in range(50)))
        assert answers == [b"%d:0" % number for number in range(50)]


async def test_a_large_answer_comes_whole(server: EmbeddedRedis) -> None:
    async with scripted(server.url, "return string.rep('ab', ARGV[1])") as repeat:
        assert await call(repeat, 200_000) == b"ab" * 200_000
        assert await call(repeat, 1) == b"ab"


@pytest.mark.parametrize("user", ["", "someone"])
async def test_it_logs_in_and_takes_the_database_of_the_address(user: str) -> None:
    own = EmbeddedRedis.start()
    path = own.url.removeprefix("unix://")
    try:
        async with redis.asyncio.Redis.from_url(own.url) as raw:
            rules = ("resetpass", ">secret", "on", "~*", "+@all")
            await raw.execute_command("ACL", "SETUSER", user or "default", *rules)
        whose = f"unix://{user}:secret@{path}?db=3"
        async with scripted(whose, "redis.call('SET', 'a', ARGV[1]) return 'ok'") as store:
            assert await call(store, "there") == b"ok"
        async with redis.asyncio.Redis.from_url(whose) as raw:
            assert await raw.get("a") == b"there"
        async with scripted(f"unix://{user}:wrong@{path}") as refused:
            with pytest.raises(Unavailable, match=r"directory.url.*WRONGPASS"):
                await call(refused, "a", "")
    finally:
        own.stop()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", RedisAddress(None, "localhost", 6379)),
        ("redis://there", RedisAddress(None, "there", 6379)),
        ("redis://:a%40b@there:1/2", RedisAddress(None, "there", 1, 2, ("a@b",))),
        ("unix:///tmp/a?db=4", RedisAddress("/tmp/a", db=4)),
    ],
)
def test_addresses(url: str, address: RedisAddress) -> None:
    client = open_client(DirectoryConfig(url=url), 1.0, RedisTlsConfig())
    assert address_of(client) == address
    assert "a@b" not in repr(address)


async def test_a_redis_behind_tls_is_verified(server: EmbeddedRedis, tmp_path: Path) -> None:
    own = Certificates(tmp_path)
    async with proxied(server, own) as (_, url):
        async with scripted(url, tls=own.redis()) as echo:
            assert await call(echo, "a", "b") == b"a:1"
        async with scripted(url) as stranger:
            with pytest.raises(Unavailable, match="of Redis is not trusted"):
                await call(stranger, "a", "b")


async def test_an_error_of_the_script_is_told_and_the_next_call_goes_on(
    server: EmbeddedRedis,
) -> None:
    async with scripted(server.url, "return redis.call(ARGV[1], 'x')") as script:
        with pytest.raises(Unavailable, match=r"directory.url.*nknown.* command"):
            await call(script, "NONSENSE")
        assert await call(script, "ECHO") == b"x"


async def test_a_script_that_redis_forgot_is_sent_again(server: EmbeddedRedis) -> None:
    async with scripted(server.url) as echo, redis.asyncio.Redis.from_url(server.url) as raw:
        await call(echo, "a", "")
        await raw.script_flush()
        assert await call(echo, "b", "") == b"b:0"


async def test_a_redis_that_ended_is_unavailable_until_it_is_back() -> None:
    own = EmbeddedRedis.start()
    try:
        async with scripted(own.url) as echo:
            await call(echo, "a", "")
            own.stop()
            with pytest.raises(Unavailable):
                await call(echo, "b", "")
    finally:
        own.stop()


async def test_a_late_answer_is_given_to_no_later_call(server: EmbeddedRedis) -> None:
    own = EmbeddedRedis.start()
    try:
        async with scripted(own.url) as echo:
            await call(echo, "a", "")
            os.kill(own.pid, signal.SIGSTOP)
            with pytest.raises(Unavailable, match=r"no answer within 0.1 s"):
                await call(echo, "late", "", timeout_s=0.1)
            os.kill(own.pid, signal.SIGCONT)
            assert await call(echo, "next", "") == b"next:0"
    finally:
        own.stop()


async def test_calls_without_an_answer_fail_with_the_connection(server: EmbeddedRedis) -> None:
    own = EmbeddedRedis.start()
    try:
        async with scripted(own.url) as echo:
            await call(echo, "a", "")
            os.kill(own.pid, signal.SIGSTOP)
            waiting = asyncio.create_task(call(echo, "b", ""))
            await asyncio.sleep(0)
            os.kill(own.pid, signal.SIGKILL)
            with pytest.raises(Unavailable, match="the connection was lost"):
                await waiting
    finally:
        own.stop()
