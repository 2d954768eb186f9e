"""The Serve application, as far as it can be seen without a cluster."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.autoscaling import PoolBounds, ScalingConfig
from cluster.config.deployment import DirectoryConfig, RayConfig, ShareConfig
from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig, load_config
from cluster.config.security import SecurityConfig
from cluster.deploy.resource_share import ResourceShare
from decode_pool.config import DecodeConfig
from engine.errors import ConfigError
from prefill_pool.config import PrefillConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own use of pydantic
    from cluster.deploy.ray_cluster import gpu_hint
    from cluster.deploy.serve_app import application, build, share_of_cluster


SECURITY = SecurityConfig("/run/secret")


def bound(application: Any) -> Any:
    """The deployment that an application is bound to."""
    return application._bound_deployment


def pools_of(router: Any) -> list[Any]:
    """The deployments that the router is bound to."""
    return [bound(pool) for pool in router.init_args[2:]]


def settings(deployment: Any) -> Any:
    """What Serve is told of a deployment."""
    return deployment._deployment_config


@pytest.mark.parametrize(
    ("replicas", "cores", "gpus", "expected"),
    [
        (2, 2, 0, ResourceShare(threads=1, gpus=0, per_device=2)),
        (2, 8, 2, ResourceShare(threads=4, gpus=1, per_device=1)),
        (4, 2, 0, ResourceShare(threads=1, gpus=0, per_device=4)),
        (2, 16, 1, ResourceShare(threads=8, gpus=0.5, per_device=2)),
        (
            3,
            16,
            2,
            ResourceShare(threads=5, gpus=0.5, per_device=2),
        ),  # 2/3 each would fit one to a GPU
    ],
)
def test_the_machine_is_shared_evenly(
    replicas: int, cores: int, gpus: int, expected: ResourceShare
) -> None:
    assert ResourceShare.of(replicas, cores, gpus) == expected


def test_there_are_three_deployments_with_readable_names() -> None:
    config = TandemConfig(
        prefill=PrefillConfig(replicas=2),
        decode=DecodeConfig(replicas=3),
        router=RouterConfig(replicas=2),
        directory=DirectoryConfig(url="unix:///x"),
        security=SECURITY,
    )
    share = ResourceShare(threads=1, gpus=0.5, per_device=2)
    router = bound(build(config, share, "the hash of the operator's key"))
    assert router.init_args[1] == "the hash of the operator's key"
    prefill, decode = pools_of(router)
    assert (router.name, prefill.name, decode.name) == ("router", "prefill", "decode")
    assert (router.num_replicas, prefill.num_replicas, decode.num_replicas) == (2, 2, 3)
    assert prefill.ray_actor_options["num_gpus"] == 0.5
    assert "num_gpus" not in router.ray_actor_options
    environment = prefill.ray_actor_options["runtime_env"]["env_vars"]
    assert environment["OMP_NUM_THREADS"] == "1"


def test_one_pool_is_one_deployment_in_role_both() -> None:
    config = TandemConfig(
        prefill=PrefillConfig(replicas=0),
        decode=DecodeConfig(replicas=2),
        directory=DirectoryConfig(url="unix:///x"),
        security=SECURITY,
    )
    (decode,) = pools_of(bound(build(config, ResourceShare.of(2, cores=2, gpus=0))))
    assert (decode.name, decode.num_replicas, decode.init_args[1]) == ("decode", 2, "both")


def test_without_a_directory_nothing_is_built() -> None:
    with pytest.raises(ConfigError, match=r"directory\.url"):
        build(TandemConfig(), ResourceShare(threads=1, gpus=0, per_device=2))


def test_without_a_secret_nothing_is_built() -> None:
    config = TandemConfig(directory=DirectoryConfig(url="redis://x"))
    with pytest.raises(ConfigError, match=r"security\.secret_file is not set; `tandem secret"):
        build(config, ResourceShare(threads=1, gpus=0, per_device=2))


def seen(application: Any) -> list[Any]:
    """What is to be deployed: each deployment's name, class, count, options and arguments."""
    router = bound(application)
    made = [(pool, pool.init_args) for pool in pools_of(router)]
    made.append((router, router.init_args[:1]))
    return [
        (one.name, one.func_or_class, one.num_replicas, one.ray_actor_options, arguments)
        for one, arguments in made
    ]


def test_the_builder_gives_the_application_that_tandem_serve_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text("prefill: {replicas: 2}\ndecode: {replicas: 3, max_batch: 8}\n")
    overrides = {
        "directory.url": "redis://here:6379/0",
        "security.secret_file": "/run/secret",
        "decode.replicas": 4,
    }
    monkeypatch.setattr("cluster.deploy.serve_app.ray.cluster_resources", lambda: {"GPU": 6.0})
    monkeypatch.setattr("cluster.deploy.serve_app.os.cpu_count", lambda: 12)
    served = build(load_config(file, overrides), ResourceShare.of(6, cores=12, gpus=6))
    built = application({"config": str(file), "overrides": overrides})
    assert seen(built) == seen(served)
    assert [made[2] for made in seen(built)] == [2, 4, 1]


def test_the_builder_refuses_unknown_arguments() -> None:
    with pytest.raises(ConfigError, match="confg"):
        application({"confg": "tandem.yaml"})


def test_a_deployment_requests_its_own_share() -> None:
    own = ShareConfig(threads=3, gpus=0.5, per_device=2, resources={"tandem_decode": 1})
    config = TandemConfig(
        directory=DirectoryConfig(url="redis://x"),
        security=SECURITY,
        ray=RayConfig(shares={"decode": own, "router": ShareConfig(threads=2)}, drain_s=90),
    )
    router = bound(build(config, ResourceShare(threads=1, gpus=1, per_device=1)))
    prefill, decode = pools_of(router)
    assert decode.ray_actor_options["resources"] == {"tandem_decode": 1}
    assert decode.ray_actor_options["num_gpus"] == 0.5
    assert decode.ray_actor_options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "3"
    assert decode.init_args[-1] == 2
    assert not prefill.ray_actor_options.get("resources")
    assert prefill.ray_actor_options["num_gpus"] == 1
    assert router.ray_actor_options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"
    assert settings(decode).graceful_shutdown_timeout_s == 95


def test_a_pool_that_scales_is_sized_by_serve_within_its_bounds() -> None:
    config = TandemConfig(
        decode=DecodeConfig(replicas=2),
        directory=DirectoryConfig(url="redis://x"),
        security=SECURITY,
        scaling=ScalingConfig(decode=PoolBounds(1, 4)),
    )
    router = bound(build(config, ResourceShare(threads=1, gpus=0, per_device=2)))
    prefill, decode = pools_of(router)
    assert settings(prefill).autoscaling_config is None
    scaling = settings(decode).autoscaling_config
    sizes = (scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas)
    assert sizes == (1, 2, 4)
    # Serve copies the policy into its own process.
    context = SimpleNamespace(raw_metrics=None, target_num_replicas=3)
    assert scaling.policy.get_policy()(context) == (3, {})


def test_a_machine_is_shared_by_all_that_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.deploy.serve_app.ray.cluster_resources", dict)
    monkeypatch.setattr("cluster.deploy.serve_app.os.cpu_count", lambda: 16)
    config = TandemConfig(scaling=ScalingConfig(prefill=PoolBounds(1, 3), decode=PoolBounds(1, 5)))
    assert share_of_cluster(config) == ResourceShare(threads=2, gpus=0, per_device=8)


def test_the_builder_waits_for_the_file_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ConfigMap reaches each pod in its own time."""
    file, text = tmp_path / "tandem.yaml", "decode: {replicas: 3}\n"
    arguments = {
        "config": str(file),
        "overrides": {
            "directory.url": "redis://here:6379/0",
            "security.secret_file": "/run/secret",
        },
        "checksum": hashlib.sha256(text.strip().encode()).hexdigest(),
    }
    monkeypatch.setattr("cluster.deploy.serve_app.ray.cluster_resources", dict)
    monkeypatch.setattr("cluster.deploy.serve_app._CONFIG_ARRIVES_S", 0.0)
    for stale in (None, "decode: {replicas: 2}\n"):
        if stale is not None:
            file.write_text(stale)
        with pytest.raises(ConfigError, match="not the one that was deployed"):
            application(arguments)
    monkeypatch.setattr("cluster.deploy.serve_app._CONFIG_ARRIVES_S", 60.0)
    monkeypatch.setattr("cluster.config.source.time.sleep", lambda _: file.write_text(text))
    router = bound(application(arguments))
    assert router.init_args[0].decode.replicas == 3


@pytest.mark.parametrize(
    ("prefill", "gpus", "transport", "expected"),
    [
        (1, 0, "auto", None),
        (0, 1, "auto", None),
        (0, 4, "nccl", None),
        (1, 1, "auto", "--prefill-replicas 0"),
        (1, 2, "auto", "unverified"),
        (1, 2, "nccl", "unverified"),
        (1, 2, "gloo", None),
    ],
)
def test_two_pools_on_gpus_give_a_hint(prefill, gpus, transport, expected):
    config = load_config(
        None, {"prefill.replicas": prefill, "decode.replicas": 1, "kv.transport": transport}
    )
    hint = gpu_hint(config, gpus)
    assert (hint is None) if expected is None else expected in str(hint)
