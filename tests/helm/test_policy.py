"""What every pod of every example must be: not root, bounded, probed, pinned, drained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from cluster.config.router import RouterConfig
from tests.helm.chart import (
    EXAMPLES,
    POOLS,
    Object,
    cluster_spec,
    example_objects,
    groups,
    objects,
    one,
    pods,
)


def containers(name: str, *, init: bool = True) -> Iterator[tuple[str, Object]]:
    for pod, template in pods(example_objects(name)):
        spec = template["spec"]
        for container in spec["containers"] + (spec.get("initContainers", []) if init else []):
            yield f"{pod}/{container['name']}", container


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_pod_is_root_or_more_than_it_must_be(name: str) -> None:
    for pod, template in pods(example_objects(name)):
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True, pod
        assert security["runAsUser"] > 0, pod
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, pod
        assert template["spec"].get("automountServiceAccountToken") is False, pod
        assert not {"hostNetwork", "hostPID", "hostIPC"} & template["spec"].keys(), pod
        assert not any("hostPath" in volume for volume in template["spec"].get("volumes", [])), pod
    for where, container in containers(name):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, where
        assert security["readOnlyRootFilesystem"] is True, where
        assert security["capabilities"]["drop"] == ["ALL"], where
        if not any("rdma" in resource for resource in container["resources"]["limits"]):
            assert "add" not in security["capabilities"], where


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_container_says_what_it_needs_and_may_take(name: str) -> None:
    for where, container in containers(name):
        for bound in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"][bound].keys(), where


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_container_is_probed_on_a_port_that_it_has(name: str) -> None:
    for where, container in containers(name, init=False):
        ports = {port["name"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            check = container[probe].get("httpGet") or container[probe].get("tcpSocket")
            assert check is None or check["port"] in ports, where
            assert check is not None or container[probe]["exec"]["command"], where


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_image_is_pinned(name: str) -> None:
    for where, container in containers(name):
        image, _, digest = container["image"].partition("@")
        tag = image.rpartition(":")[2]
        assert re.fullmatch(r"[\w.-]*\d+\.\d+[\w.-]*", tag), where
        assert not digest or re.fullmatch("sha256:[0-9a-f]{64}", digest), where
        assert digest or name != "locked-down", where


def test_the_redis_of_the_chart_is_past_its_security_fixes() -> None:
    """7.2.16 has the last of them that is known, in its TLS (CVE-2026-81934)."""
    (pod,) = [pod for made, pod in pods(objects()) if made == "tandem-redis"]
    version = re.fullmatch(
        r"redis:(\d+)\.(\d+)\.(\d+)-alpine", pod["spec"]["containers"][0]["image"]
    )
    assert version is not None
    assert tuple(map(int, version.groups())) >= (7, 2, 16)


def test_the_container_of_ray_s_autoscaler_is_as_restricted_as_the_others() -> None:
    scaling = {"decode": {"min": 1, "max": 5}}
    spec = cluster_spec(objects({"application": {"scaling": scaling}}))
    options = spec["autoscalerOptions"]
    assert options["securityContext"]["readOnlyRootFilesystem"] is True
    assert options["securityContext"]["allowPrivilegeEscalation"] is False
    assert options["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= options["resources"]["limits"].keys()
    assert "autoscalerOptions" not in cluster_spec(objects())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_mount_has_its_volume_and_every_port_its_own_number(name: str) -> None:
    for pod, template in pods(example_objects(name)):
        spec = template["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        volumes |= {"data"} if pod == "tandem-redis" else set()
        for container in spec["containers"] + spec.get("initContainers", []):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, pod
            numbers = [port["containerPort"] for port in container.get("ports", [])]
            assert len(set(numbers)) == len(numbers), pod


@pytest.mark.parametrize("name", EXAMPLES)
def test_selectors_find_the_pods_that_they_are_for(name: str) -> None:
    found = example_objects(name)
    labels = {pod: template["metadata"]["labels"] for pod, template in pods(found)}

    def chosen(selector: dict[str, str]) -> set[str]:
        return {pod for pod, own in labels.items() if selector.items() <= own.items()}

    for service in ("tandem", "tandem-grpc"):
        assert chosen(one(found, "Service", service)["spec"]["selector"]) == {"router"}
    for item in found:
        if item["kind"] == "PodDisruptionBudget":
            expected = item["metadata"]["name"].removeprefix("tandem-")
            assert chosen(item["spec"]["selector"]["matchLabels"]) == {expected}


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_pools_are_the_same_pod_but_for_their_values(name: str) -> None:
    found = groups(example_objects(name))
    assert tuple(found) == POOLS
    shapes = [set(group["template"]["spec"]) for group in found.values()]
    optional = {"topologySpreadConstraints", "nodeSelector"}
    assert all(shape - optional == shapes[0] - optional for shape in shapes)
    for group in found.values():
        (container,) = group["template"]["spec"]["containers"]
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        grace = group["template"]["spec"]["terminationGracePeriodSeconds"]
        assert hook[:2] == ["bash", "/etc/tandem/drain.sh"]
        assert int(hook[2]) < grace


def test_ingresses_do_not_buffer_and_wait_for_the_longest_request() -> None:
    for item in example_objects("2p4d-two-gpu-types"):
        if item["kind"] == "Ingress":
            notes = item["metadata"]["annotations"]
            assert notes["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
            assert int(notes["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > 1800
            size = int(notes["nginx.ingress.kubernetes.io/proxy-body-size"])
            assert size == RouterConfig().max_message_bytes
    route = one(example_objects("large-model"), "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "660s", "backendRequest": "660s"}


def test_a_dashboard_is_json_with_a_uid() -> None:
    found = objects({"monitoring": {"dashboards": True}})
    (made,) = [i for i in found if i["metadata"]["name"].startswith("tandem-dashboard-")]
    (text,) = made["data"].values()
    assert json.loads(text)["uid"] == "tandem"
