"""A proxy for the world outside, as company networks have one, is not between replicas."""

from __future__ import annotations

import pytest

from cluster.rpc.membership import Membership
from cluster.rpc.role_control import request_role
from tests.integration.local import cluster


@pytest.fixture
def proxy(monkeypatch):
    """Named in the environment, and not there."""
    for name in ("no_proxy", "NO_PROXY", "grpc_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def name_it():
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    return name_it


async def test_requests_and_kv_take_the_direct_way(config, proxy):
    async with cluster(config) as local:
        proxy()  # the client has its channel, the router and the replicas make theirs only now
        done = await local.client.complete([1] * 300, max_tokens=8, ignore_eos=True, timeout_s=30)
        assert len(done.choices[0].tokens) == 8
        (record,) = [one for one in await local.directory.members() if one.role == "decode"]
        dialling = Membership.of(config).connector()
        assert await request_role(dialling, record, "decode") == "decode"
        await local.idle()
