"""The directory in a Redis behind TLS."""

from __future__ import annotations

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
from tests.certificates import Certificates
from tests.cluster.discovery.members import SECRET
from tests.cluster.discovery.tls_proxy import proxied


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


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
