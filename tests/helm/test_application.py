"""What the rendered configuration is to the code that reads it."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.config.deployment import ShareConfig
from cluster.config.schema import TandemConfig, load_config
from tests.helm.chart import (
    EXAMPLES,
    POOLS,
    example,
    example_objects,
    groups,
    objects,
    one,
    render,
)
from tests.helm.chart import serve_config as served

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own use of pydantic
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as call_builder
    from ray.serve.schema import ServeDeploySchema

    from cluster.deploy.serve_app import application


def loaded(found: Any, folder: Path) -> TandemConfig:
    """The configuration as the builder of the application reads it in the cluster."""
    file = folder / "tandem.yaml"
    file.write_text(one(found, "ConfigMap", "tandem-config")["data"]["tandem.yaml"])
    (app,) = served(found)["applications"]
    assert app["args"]["config"] == "/etc/tandem/tandem.yaml"
    return load_config(file, app["args"]["overrides"])


def deployments(found: Any, folder: Path) -> dict[str, Any]:
    """The Serve deployments that the builder makes of it."""
    file = folder / "tandem.yaml"
    file.write_text(one(found, "ConfigMap", "tandem-config")["data"]["tandem.yaml"])
    arguments = served(found)["applications"][0]["args"] | {"config": str(file)}
    router = call_builder(application, arguments)._bound_deployment
    pools = [pool._bound_deployment for pool in router.init_args[2:]]
    return {made.name: made for made in (router, *pools)}


def resources(requests: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    """The resources of a pool, with CPUs."""
    return {"requests": {"cpu": "1"} | requests, "limits": {"cpu": "2"} | limits}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.deploy.serve_app.ray.cluster_resources", dict)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_configuration_class_reads_what_is_rendered(name: str, tmp_path: Path) -> None:
    config = loaded(example_objects(name), tmp_path)
    assert config.directory.url is not None
    assert config.router.host == "0.0.0.0"
    given = example(name)["application"]
    assert config.decode.replicas == given["decode"]["replicas"]
    assert config.prefill.replicas == given["prefill"]["replicas"]
    assert set(config.ray.shares) == set(POOLS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_ray_serve_reads_what_is_rendered(name: str) -> None:
    found = example_objects(name)
    schema = ServeDeploySchema.model_validate(served(found))
    assert schema.proxy_location == "Disabled"
    if example(name).get("mode") != "cluster":
        service = one(found, "RayService")
        assert yaml.safe_load(service["spec"]["serveConfigV2"]) == served(found)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_replica_has_a_slot_in_its_own_group(name: str, tmp_path: Path) -> None:
    found = example_objects(name)
    made = deployments(found, tmp_path)
    routers = served(found)["applications"][0]["deployments"][0]
    counts = {pool: made[pool].num_replicas for pool in POOLS} | {"router": routers["num_replicas"]}
    for pool, group in groups(found).items():
        started = group["rayStartParams"]
        offered = json.loads(started["resources"].strip("'"))
        wanted = made[pool].ray_actor_options
        assert wanted["resources"] == {f"tandem_{pool}": 1}
        assert offered.keys() == {f"tandem_{pool}"}
        each = offered[f"tandem_{pool}"]
        assert each * group["replicas"] >= counts[pool] > each * (group["replicas"] - 1)
        assert wanted.get("num_gpus", 0) * each == pytest.approx(int(started.get("num-gpus", 0)))


def test_the_text_of_the_configuration_is_passed_on_verbatim(tmp_path: Path) -> None:
    text = "  # mine\n\n  decode: {replicas: 3}  # {{ three }}\n  model:\n    path: demo\n"
    found = objects({"applicationFile": text})
    assert one(found, "ConfigMap", "tandem-config")["data"]["tandem.yaml"] == text
    assert groups(found)["decode"]["replicas"] == 3
    assert loaded(found, tmp_path).decode.replicas == 3


@pytest.mark.parametrize(
    "values",
    [*map(example, EXAMPLES), {}, {"applicationFile": "\n\n  # mine\n  decode: {replicas: 3}\n\n"}],
    ids=[*EXAMPLES, "nothing", "file"],
)
def test_the_builder_is_told_which_file_it_is_to_read(values: dict[str, Any]) -> None:
    """Else a change of the application would change nothing that KubeRay sends to Serve."""
    found = objects(values)
    text = one(found, "ConfigMap", "tandem-config")["data"]["tandem.yaml"]
    checksum = served(found)["applications"][0]["args"]["checksum"]
    assert checksum == hashlib.sha256(text.strip().encode()).hexdigest()


def test_the_default_endpoint_stays_the_first(tmp_path: Path) -> None:
    endpoints = {"report": {"max_output_tokens": 9}, "chat": {"flush": {"ms": 1.5}}, "b": {}}
    values = {"application": {"endpoints": endpoints, "decode": {"replicas": 2}}}
    config = loaded(objects({**values, "defaultEndpoint": "report"}), tmp_path)
    assert list(config.endpoints) == ["report", "b", "chat"]
    assert config.default_endpoint == "report"
    assert config.endpoints["report"].max_output_tokens == 9
    assert config.endpoints["chat"].flush.ms == 1.5
    assert config.decode.replicas == 2


def test_a_share_follows_from_the_pod(tmp_path: Path) -> None:
    resources = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "9", "memory": "8Gi"}}
    pool = {"gpus": 1, "replicasPerPod": 2, "resources": resources}
    found = objects({"application": {"decode": {"replicas": 3}}, "pools": {"decode": pool}})
    share = loaded(found, tmp_path).ray.shares["decode"]
    assert (share.threads, share.gpus, share.per_device) == (4, 0.5, 2)
    assert groups(found)["decode"]["replicas"] == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    replicas=st.integers(1, 9),
    each=st.integers(1, 8),
    sharing=st.integers(0, 3),
    cores=st.integers(1, 64),
)
def test_every_replica_fits_into_its_pod(
    replicas: int, each: int, sharing: int, cores: int
) -> None:
    gpus = max(0, each // sharing) if sharing else 0
    amount = {"cpu": cores, "memory": "8Gi"}
    pool = {
        "gpus": gpus,
        "replicasPerPod": each,
        "resources": {"requests": amount, "limits": amount},
    }
    found = objects({"application": {"decode": {"replicas": replicas}}, "pools": {"decode": pool}})
    overrides = served(found)["applications"][0]["args"]["overrides"]
    share = ShareConfig(**overrides["ray.shares.decode"])
    group = groups(found)["decode"]
    assert group["replicas"] * each >= replicas > (group["replicas"] - 1) * each
    assert share.threads == max(1, cores // each)
    if 0 < share.gpus < 1:
        assert int(1 / share.gpus + 1e-9) * gpus >= each
        assert share.per_device == int(1 / share.gpus + 1e-9)
    elif gpus:
        assert share.gpus * each == gpus and share.gpus == int(share.gpus)
        assert share.per_device == 1
    else:
        assert share.gpus == 0 and share.per_device == each


def test_one_pool_has_one_group(tmp_path: Path) -> None:
    found = objects({"application": {"prefill": {"replicas": 0}, "decode": {"replicas": 2}}})
    assert tuple(groups(found)) == ("router", "decode")
    budgets = [i["metadata"]["name"] for i in found if i["kind"] == "PodDisruptionBudget"]
    assert budgets == ["tandem-router", "tandem-decode"]
    assert deployments(found, tmp_path).keys() == {"router", "decode"}


def test_a_pool_may_have_less_than_the_defaults() -> None:
    shared = {"gpus": 2, "replicasPerPod": 2}
    found = objects({"poolDefaults": shared, "pools": {"router": {"gpus": 0}}})
    started = {name: group["rayStartParams"] for name, group in groups(found).items()}
    assert "num-gpus" not in started["router"]
    assert started["decode"]["num-gpus"] == "2"


@pytest.mark.parametrize(
    ("values", "requested", "limit"),
    [
        ({}, "8Gi", "8Gi"),
        ({"model": {"sizeGi": 15}}, "27Gi", "27Gi"),
        ({"model": {"sizeGi": 0.3}, "poolDefaults": {"replicasPerPod": 2}}, "18Gi", "18Gi"),
        ({"model": {"sizeGi": 15}, "poolDefaults": {"gpus": 1}}, "6Gi", "6Gi"),
        (
            {"model": {"sizeGi": 62}, "poolDefaults": {"gpus": 4, "replicasPerPod": 4}},
            "24Gi",
            "24Gi",
        ),
        ({"pools": {"decode": {"resources": resources({"memory": "9Gi"}, {})}}}, "9Gi", "9Gi"),
        (
            {"pools": {"decode": {"resources": resources({"memory": "3Gi"}, {"memory": "4Gi"})}}},
            "3Gi",
            "4Gi",
        ),
    ],
)
def test_memory_follows_from_the_model_where_none_is_given(
    values: dict[str, Any], requested: str, limit: str
) -> None:
    (container,) = groups(objects(values))["decode"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["memory"] == requested
    assert container["resources"]["limits"]["memory"] == limit


def test_a_pool_with_rdma_asks_for_no_capability_and_its_notes_name_memlock() -> None:
    """A capability does nothing for a container that is not root; the node's limit counts."""
    found = render(example("2p4d-two-gpu-types"))
    assert "IPC_LOCK" not in "".join(found.values())
    notes = next(text for name, text in found.items() if name.endswith("NOTES.txt"))
    assert notes.count("LimitMEMLOCK=infinity") == 2


def test_only_a_changed_application_rolls_the_pods() -> None:
    def sums(values: dict[str, Any]) -> set[str]:
        return {
            group["template"]["metadata"]["annotations"]["checksum/config"]
            for group in groups(objects(values)).values()
        }

    before = sums({})
    assert len(before) == 1
    assert sums({"application": {"decode": {"max_batch": 8}}}) != before
    assert sums({"service": {"type": "NodePort"}}) == before


def test_the_old_cluster_and_every_pod_outlive_the_longest_request(tmp_path: Path) -> None:
    values = {"application": {"router": {"request_timeout_s": 1800.5}}, "replacementSeconds": 7}
    found = objects(values)
    config = loaded(found, tmp_path)
    assert config.ray.drain_s == 1801
    assert one(found, "RayService")["spec"]["rayClusterDeletionDelaySeconds"] > 1800.5
    for group in groups(found).values():
        spec = group["template"]["spec"]
        hook = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert spec["terminationGracePeriodSeconds"] > int(hook[-1]) >= config.ray.drain_s + 7


def test_the_weights_are_where_the_configuration_says(tmp_path: Path) -> None:
    for name in ("one-gpu-node", "2p4d-two-gpu-types", "large-model"):
        found = example_objects(name)
        folder = loaded(found, tmp_path).model.path
        for group in groups(found).values():
            (container,) = group["template"]["spec"]["containers"]
            (mount,) = [m for m in container["volumeMounts"] if m["name"] == "model"]
            assert folder == f"{mount['mountPath']}/{example(name)['model']['folder']}"


def test_the_pods_follow_the_bounds_of_a_pool_that_scales(tmp_path: Path) -> None:
    scaling = {"decode": {"min": 1, "max": 5}}
    application = {"decode": {"replicas": 2}, "scaling": scaling}
    found = objects({"application": application, "pools": {"decode": {"replicasPerPod": 2}}})
    sizes = {
        name: (group["minReplicas"], group["replicas"], group["maxReplicas"])
        for name, group in groups(found).items()
    }
    assert sizes == {"router": (1, 1, 1), "prefill": (1, 1, 1), "decode": (1, 1, 3)}
    assert one(found, "RayService")["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] is True
    made = deployments(found, tmp_path)["decode"]._deployment_config.autoscaling_config
    assert (made.min_replicas, made.initial_replicas, made.max_replicas) == (1, 2, 5)
    own = {"decode": {"autoscaling": {"minPods": 2, "maxPods": 4}}}
    group = groups(objects({"application": application, "pools": own}))["decode"]
    assert (group["minReplicas"], group["maxReplicas"]) == (2, 4)


def test_two_versions_share_a_redis_and_not_a_directory(tmp_path: Path) -> None:
    def namespace(values: dict[str, Any]) -> str:
        return loaded(objects(values), tmp_path).directory.namespace

    assert namespace({}) == namespace({"service": {"type": "NodePort"}}) != ""
    changed = ({"application": {"decode": {"max_batch": 8}}}, {"image": {"tag": "0.2.0"}})
    assert len({namespace(values) for values in ({}, *changed)}) == 3
    # Upgraded in place, old and new replicas stand in for each other.
    assert namespace({"ray": {"upgrade": {"type": "None"}}}) == ""


def test_the_request_log_has_a_volume_in_the_pods_of_routers_alone() -> None:
    rows = {"request_log": {"folder": "/var/log/tandem-rows"}}
    claim = {"persistentVolumeClaim": {"claimName": "rows"}}
    found = one(
        objects({"application": rows, "requestLog": {"volume": claim}}), "RayService", "tandem"
    )
    config = found["spec"]["rayClusterConfig"]
    with_rows = {}
    for group in config["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        mounts = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
        volumes = {one["name"]: one for one in spec["volumes"]}
        assert ("rows" in mounts) == ("rows" in volumes)
        if "rows" in mounts:
            with_rows[group["groupName"]] = mounts["rows"], volumes["rows"]
    assert with_rows == {"router": ("/var/log/tandem-rows", {"name": "rows", **claim})}
