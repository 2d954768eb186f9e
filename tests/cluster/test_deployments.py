"""The Serve application, as far as it can be seen without a cluster."""

from __future__ import annotations

import warnings

import pytest

from cluster.config import DirectoryConfig, TandemConfig
from decode_pool.config import DecodeConfig
from engine.errors import ConfigError
from prefill_pool.config import PrefillConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own use of pydantic
    from cluster.deployments import Share, build


@pytest.mark.parametrize(
    ("replicas", "cores", "gpus", "expected"),
    [
        (2, 2, 0, Share(threads=1, gpus=0, per_device=2)),
        (2, 8, 2, Share(threads=4, gpus=1, per_device=1)),
        (4, 2, 0, Share(threads=1, gpus=0, per_device=4)),
        (2, 16, 1, Share(threads=8, gpus=0.5, per_device=2)),
        (3, 16, 2, Share(threads=5, gpus=0.5, per_device=2)),  # 2/3 each would fit one to a GPU
    ],
)
def test_the_machine_is_shared_evenly(
    replicas: int, cores: int, gpus: int, expected: Share
) -> None:
    assert Share.of(replicas, cores, gpus) == expected


def test_there_are_three_deployments_with_readable_names() -> None:
    config = TandemConfig(
        prefill=PrefillConfig(replicas=2),
        decode=DecodeConfig(replicas=3),
        directory=DirectoryConfig(url="unix:///x"),
    )
    application = build(config, Share(threads=1, gpus=0.5, per_device=2))
    router = application._bound_deployment
    _, *pools = router.init_args
    prefill, decode = (pool._bound_deployment for pool in pools)
    assert (router.name, prefill.name, decode.name) == ("router", "prefill", "decode")
    assert (router.num_replicas, prefill.num_replicas, decode.num_replicas) == (1, 2, 3)
    assert prefill.ray_actor_options["num_gpus"] == 0.5
    assert "num_gpus" not in router.ray_actor_options
    environment = prefill.ray_actor_options["runtime_env"]["env_vars"]
    assert environment["OMP_NUM_THREADS"] == "1"


def test_one_pool_is_one_deployment_in_role_both() -> None:
    config = TandemConfig(
        prefill=PrefillConfig(replicas=0),
        decode=DecodeConfig(replicas=2),
        directory=DirectoryConfig(url="unix:///x"),
    )
    router = build(config, Share.of(2, cores=2, gpus=0))._bound_deployment
    _, pool = router.init_args
    decode = pool._bound_deployment
    assert (decode.name, decode.num_replicas, decode.init_args[1]) == ("decode", 2, "both")


def test_without_a_directory_nothing_is_built() -> None:
    with pytest.raises(ConfigError, match=r"directory\.url"):
        build(TandemConfig(), Share(threads=1, gpus=0, per_device=2))
