"""What every pod of every example must be: not root, bounded, probed, pinned, drained."""

from __future__ import annotations

import json
from collections.abc import Iterator

import helm_python
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
        image, _, tag = container["image"].rpartition(":")
        assert image and tag and tag != "latest", where


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
    own = one(found, "NetworkPolicy", "tandem")["spec"]["podSelector"]["matchLabels"]
    assert chosen(own) == labels.keys()


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


def test_secrets_are_in_no_object_but_by_reference() -> None:
    for name in ("2p4d-two-gpu-types", "tensor-parallel", "locked-down"):
        text = json.dumps(example_objects(name))
        assert '"kind": "Secret"' not in text
        assert "redis://:" not in text
        assert cluster_spec(example_objects(name))["gcsFaultToleranceOptions"]["redisPassword"] == {
            "valueFrom": {"secretKeyRef": {"key": "password", "name": "redis-password"}}
        }


def test_ingresses_do_not_buffer_and_wait_for_the_longest_request() -> None:
    for item in example_objects("2p4d-two-gpu-types"):
        if item["kind"] == "Ingress":
            notes = item["metadata"]["annotations"]
            assert notes["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
            assert int(notes["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > 1800
            size = int(notes["nginx.ingress.kubernetes.io/proxy-body-size"])
            assert size == RouterConfig().max_message_bytes
    route = one(example_objects("tensor-parallel"), "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "660s", "backendRequest": "660s"}


def test_a_locked_down_release_names_all_its_clients() -> None:
    for item in example_objects("locked-down"):
        if item["kind"] == "NetworkPolicy":
            for rule in item["spec"]["ingress"]:
                assert rule["from"]
                assert {"namespaceSelector": {}} not in rule["from"]


def ingresses_of(values: Object, port: str) -> list[Object]:
    """The rules of all policies by which somebody reaches the routers at that port."""
    return [
        rule
        for item in objects(values)
        if item["kind"] == "NetworkPolicy"
        for rule in item["spec"]["ingress"]
        if {"port": port} in rule.get("ports", [])
    ]


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_only_named_clients_may_reach_the_routers(port: str) -> None:
    named = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}}}]
    assert ingresses_of({}, port)[0].get("from") is None  # anybody
    rules = ingresses_of({"networkPolicy": {"clients": named}}, port)
    assert [rule["from"] for rule in rules] == [named]


def test_monitoring_must_be_named_where_clients_are() -> None:
    prometheus = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    clients = [{"podSelector": {}}]
    values = {"networkPolicy": {"clients": clients}, "monitoring": {"serviceMonitor": True}}
    with pytest.raises(helm_python.HelmError, match=r"networkPolicy\.monitoring"):
        objects(values)
    values["networkPolicy"]["monitoring"] = prometheus
    assert [rule["from"] for rule in ingresses_of(values, "http")] == [clients, prometheus]


def test_a_dashboard_is_json_with_a_uid() -> None:
    found = objects({"monitoring": {"dashboards": True}})
    (made,) = [i for i in found if i["metadata"]["name"].startswith("tandem-dashboard-")]
    (text,) = made["data"].values()
    assert json.loads(text)["uid"] == "tandem"
