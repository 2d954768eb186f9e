"""The whole path with KV that the decode replicas read out of the prefill replicas' blocks."""

from __future__ import annotations

from dataclasses import replace

from tests import exactness
from tests.integration.local import cluster
from tests.integration.test_cluster import crowd, small_pool
from tests.kv_transfer.rig import needs_nixl


@needs_nixl
async def test_exact_in_a_crowd_over_nixl(config, model, monkeypatch, caplog):
    caplog.set_level("INFO", "kv_transfer")
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    config = replace(small_pool(config, 60, replicas=2), decode=replace(config.decode, replicas=2))
    config = replace(config, kv=replace(config.kv, transport="nixl"))
    cases = [case for case in exactness.make_cases(model, 40) if len(case.prompt) < 400]
    async with cluster(config) as local:
        answers = await crowd(local, cases, 12)
        await local.idle()
    assert not exactness.differences(model, cases, [got for got, _ in answers])
    assert "opens by nixl" in caplog.text
