"""Ray's own state in Redis: where the chart says it is, and whose it is."""

from __future__ import annotations

import helm_python
import pytest

from tests.helm.chart import cluster_spec, objects

FAULT_TOLERANCE = {"enabled": True}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("", "tandem-redis:6379"),
        ("redis://redis.databases.svc:6380/3", "redis.databases.svc:6380"),
        ("redis://redis.databases.svc/0", "redis.databases.svc:6379"),
        ("rediss://redis.databases.svc:6380/3", "rediss://redis.databases.svc:6380"),
    ],
)
def test_ray_gets_the_redis_of_the_directory_as_host_and_port(url: str, address: str) -> None:
    found = objects({"redis": {"url": url}, "ray": {"faultTolerance": FAULT_TOLERANCE}})
    assert cluster_spec(found)["gcsFaultToleranceOptions"]["redisAddress"] == address


def test_two_clusters_of_an_upgrade_never_share_one_state() -> None:
    named = {"faultTolerance": {**FAULT_TOLERANCE, "namespace": "mine"}}
    with pytest.raises(helm_python.HelmError, match=r"faultTolerance\.namespace"):
        objects({"ray": named})
    for values in (
        {"ray": {**named, "upgrade": {"type": "None"}}},
        {"mode": "cluster", "ray": named},
    ):
        options = cluster_spec(objects(values))["gcsFaultToleranceOptions"]
        assert options["externalStorageNamespace"] == "mine"
