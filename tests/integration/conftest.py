"""Fixtures: a Redis of the test's own, and the tiny model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from redis import Redis

from cluster.config.endpoints import EndpointConfig
from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from protos.wire.secret import made
from tests import tiny


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny matrices: two threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def redis():
    server = EmbeddedRedis.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def model(model_folder):
    """The reference model; its files are in `model_folder`."""
    return tiny.make(model_folder)


@pytest.fixture(scope="session")
def secret_file(tmp_path_factory):
    return made(tmp_path_factory.mktemp("cluster") / "secret")


@pytest.fixture
def empty_redis(redis):
    """Without the leases of members that an earlier test killed, which live for seconds."""
    with Redis.from_url(redis.url) as client:
        client.flushall()
    return redis


@pytest.fixture
def config(empty_redis, model, model_folder, secret_file) -> TandemConfig:
    """A small cluster on free ports."""
    base = TandemConfig()
    return replace(
        base,
        model=replace(base.model, path=str(model_folder), dtype="float32"),
        kv=replace(base.kv, blocks=400),
        router=replace(base.router, http_port=0, grpc_port=0),
        # However slow the machine is, nothing is refused for it.
        endpoints={"chat": EndpointConfig(ttft_budget_ms=60_000, itl_budget_ms=60_000)},
        directory=replace(base.directory, url=empty_redis.url),
        security=SecurityConfig(secret_file=str(secret_file)),
    )
