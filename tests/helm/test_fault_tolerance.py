"""Ray's own state in Redis: where the chart says it is, and whose it is."""

from __future__ import annotations

import helm_python
import pytest

from tests.helm.chart import cluster_spec, example_objects, files_of, objects

FAULT_TOLERANCE = {"enabled": True}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("", "rediss://tandem-redis:6379"),
        ("rediss://redis.databases.svc:6380/3", "rediss://redis.databases.svc:6380"),
        ("rediss://redis.databases.svc/0", "rediss://redis.databases.svc:6379"),
    ],
)
def test_ray_gets_the_redis_of_the_directory_as_host_and_port(url: str, address: str) -> None:
    redis = {"url": url, "passwordSecret": {"name": "redis-password"}}
    found = objects({"redis": redis, "ray": {"faultTolerance": FAULT_TOLERANCE}})
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


def test_without_tls_ray_gets_a_plain_address() -> None:
    values = {"redis": {"url": "redis://redis:6380/3", "allowWithoutPassword": True}}
    ray = {"ray": {"faultTolerance": FAULT_TOLERANCE}, "tls": {"enabled": False}}
    options = cluster_spec(objects({**values, **ray}))["gcsFaultToleranceOptions"]
    assert options == {"redisAddress": "redis:6380"}


def test_the_head_has_the_files_of_redis_under_ray_s_names() -> None:
    """Ray reads RAY_REDIS_CA_CERT and others; without them it refuses the certificate of Redis."""
    for name, files in {
        "locked-down": ("redis/ca.crt", "internal/tls.crt", "internal/tls.key"),
        "2p4d-two-gpu-types": ("redis/ca.crt",),
    }.items():
        pod = cluster_spec(example_objects(name))["headGroupSpec"]["template"]
        env = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
        names = [f"RAY_REDIS_{part}" for part in ("CA_CERT", "CLIENT_CERT", "CLIENT_KEY")]
        paths = [f"/etc/tandem-secrets/{file}" for file in files]
        assert {key: env[key] for key in names if key in env} == dict(
            zip(names[: len(paths)], paths, strict=True)
        )
        assert set(paths) <= files_of(pod).keys()
