"""Who reaches which port of the pods, where the pods go, and which paths lead in from outside."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helm.chart import EXAMPLES, GATEWAY, Object, example_objects, objects, one, pods

RAY_PODS = {"head", "router", "prefill", "decode"}
CLOSED: dict[str, Any] = {"networkPolicy": {}}


def policies(found: Any) -> list[Object]:
    return [item for item in found if item["kind"] == "NetworkPolicy"]


def rules(found: Any, way: str) -> Iterator[tuple[str, Object]]:
    for item in policies(found):
        for rule in item["spec"].get(way, []):
            yield item["metadata"]["name"], rule


def chosen(selector: Object, found: Any) -> set[str]:
    """The pods that a selector finds, among those of the release."""
    names = set()
    for name, pod in pods(found):
        labels = pod["metadata"]["labels"]
        (expression,) = selector.get("matchExpressions", [None])
        if selector.get("matchLabels", {}).items() <= labels.items() and (
            expression is None or labels[expression["key"]] not in expression["values"]
        ):
            names.add(name)
    return names


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_pod_is_closed_both_ways(name: str) -> None:
    found = example_objects(name)
    for pod, _ in pods(found):
        ways = [
            way
            for item in policies(found)
            if pod in chosen(item["spec"]["podSelector"], found)
            for way in item["spec"]["policyTypes"]
        ]
        assert {"Ingress", "Egress"} <= set(ways), pod


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_ports_of_ray_and_serve_are_for_the_release_s_own_ray_pods(name: str) -> None:
    """GCS, Ray's client, workers, Serve's replicas and the links between replicas have no rule."""
    found = example_objects(name)
    every_port = [(where, rule) for where, rule in rules(found, "ingress") if "ports" not in rule]
    ((where, rule),) = every_port
    assert where == "tandem"
    (peer,) = rule["from"]
    assert peer.keys() == {"podSelector"}  # of this namespace
    assert chosen(peer["podSelector"], found) == RAY_PODS
    own = one(found, "NetworkPolicy", "tandem")["spec"]["podSelector"]
    assert chosen(own, found) == RAY_PODS
    for where, rule in rules(found, "ingress"):
        named = {port["port"] for port in rule.get("ports", [])}
        allowed = {"clients": {"http", "grpc"}, "operator": {"dashboard"}, "redis": {"redis"}}
        allowed |= {"monitoring": {"metrics", "http"}, "tandem": set()}
        assert named <= allowed[where.removeprefix("tandem-")], where


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_example_lets_everybody_in(name: str) -> None:
    for where, rule in rules(example_objects(name), "ingress"):
        assert rule["from"], where
        assert {} not in rule["from"], where
        assert {"namespaceSelector": {}} not in rule["from"], where


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_clients_are_of_the_namespace_unless_they_are_named(port: str) -> None:
    def peers(values: dict[str, Any]) -> list[Any]:
        found = rules(objects(values), "ingress")
        return [rule.get("from") for _, rule in found if {"port": port} in rule.get("ports", [])]

    assert peers(CLOSED) == [[{"podSelector": {}}]]
    assert peers({"networkPolicy": {"clients": GATEWAY}}) == [GATEWAY]
    assert peers({"networkPolicy": {"clients": [{}]}}) == [None]  # everybody, said by name


def test_the_operator_and_prometheus_are_known_by_their_pods() -> None:
    monitoring = {"podMonitor": True, "serviceMonitor": True, "keySecret": {"name": "key"}}
    found = objects({**CLOSED, "monitoring": monitoring})
    peers = {where: rule["from"] for where, rule in rules(found, "ingress") if "ports" in rule}
    assert peers["tandem-operator"] == [
        {
            "namespaceSelector": {},
            "podSelector": {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}},
        }
    ]
    assert peers["tandem-monitoring"][0]["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "prometheus"
    }
    assert "tandem-monitoring" not in {where for where, _ in rules(objects(CLOSED), "ingress")}


def test_redis_is_for_ray_pods_and_reaches_nobody() -> None:
    found = objects(CLOSED)
    spec = one(found, "NetworkPolicy", "tandem-redis")["spec"]
    assert chosen(spec["podSelector"], found) == {"tandem-redis"}
    assert spec["policyTypes"] == ["Ingress", "Egress"] and "egress" not in spec
    ((_, rule),) = [each for each in rules(found, "ingress") if each[0] == "tandem-redis"]
    assert rule["ports"] == [{"port": "redis"}]
    assert chosen(rule["from"][0]["podSelector"], found) == RAY_PODS


def egress(values: dict[str, Any]) -> dict[str, list[Any]]:
    """The ports that lead out of the release, with their peers, by policy."""
    own = [{"port": 6379}]
    return {
        where: [port["port"] for port in rule["ports"]] + rule.get("to", [])
        for where, rule in rules(objects(values), "egress")
        if "ports" in rule and rule["ports"] != own
    }


def test_pods_go_out_to_names_alone_unless_they_need_more() -> None:
    assert egress(CLOSED) == {"tandem": [53, 53]}
    named = {"passwordSecret": {"name": "password"}}
    assert egress({**CLOSED, "redis": {"url": "rediss://redis:6390/0", **named}}) == {
        "tandem": [53, 53],
        "tandem-redis": [6390],
    }
    scaling = {"application": {"scaling": {"decode": {"min": 1, "max": 5}}}}
    assert egress({**CLOSED, **scaling})["tandem-autoscaler"] == [443, 6443]
    hub = {"source": "hub", "hub": {"name": "a/b", "revision": "0123"}}
    assert egress({**CLOSED, "model": hub})["tandem-model"] == [443]
    peers = {"networkPolicy": {"egress": {"dns": GATEWAY, "modelStore": GATEWAY}}}
    assert egress({**peers, "model": hub}) == {
        "tandem": [53, 53, *GATEWAY],
        "tandem-model": [443, *GATEWAY],
    }
    open_again = {"networkPolicy": {"restrictEgress": False}}
    assert egress({**open_again, "model": hub}) == {}


def test_ray_s_autoscaler_alone_reaches_the_api_server() -> None:
    found = objects({"application": {"scaling": {"decode": {"min": 1, "max": 5}}}})
    spec = one(found, "NetworkPolicy", "tandem-autoscaler")["spec"]
    assert chosen(spec["podSelector"], found) == {"head"}


def leads_to(found: Any, path: str) -> set[str]:
    """The Services to which a path leads from outside, by Ingress or Gateway."""
    services = set()
    for item in found:
        if item["kind"] == "Ingress":
            for route in item["spec"]["rules"][0]["http"]["paths"]:
                end = "*" if route["pathType"] == "Prefix" else ""
                if fnmatch.fnmatch(path, route["path"] + end):
                    services.add(route["backend"]["service"]["name"])
        if item["kind"] in ("HTTPRoute", "GRPCRoute"):
            for rule in item["spec"]["rules"]:
                for match in rule.get("matches", [{}]):
                    named = match.get("path") or {"type": "PathPrefix", "value": "/"}
                    end = "*" if named["type"] == "PathPrefix" else ""
                    pattern = named["value"] + end
                    if "method" in match:
                        pattern = f"/{match['method']['service']}/*"
                    if fnmatch.fnmatch(path, pattern):
                        services.add(rule["backendRefs"][0]["name"])
    return services


@pytest.mark.parametrize("name", ["2p4d-two-gpu-types", "large-model"])
def test_only_the_paths_of_clients_lead_in(name: str) -> None:
    found = example_objects(name)
    for path in ("/v1/chat/completions", "/v1/models", "/v1/stream", "/healthz"):
        assert leads_to(found, path) == {"tandem"}
    for path in ("/tandem.v1.Inference/Generate", "/grpc.health.v1.Health/Check"):
        assert leads_to(found, path) == {"tandem-grpc"}
    closed = ("/", "/metrics", "/tandem.v1.Admin/Rollout", "/healthz/", "/metrics/", "/v2/")
    for path in (*closed, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
        assert leads_to(found, path) == set(), path


def test_every_way_in_from_outside_is_encrypted() -> None:
    ingresses = [i for i in example_objects("2p4d-two-gpu-types") if i["kind"] == "Ingress"]
    assert len(ingresses) == 2
    for item, protocol in zip(ingresses, ("HTTPS", "GRPCS"), strict=True):
        notes = item["metadata"]["annotations"]
        assert item["spec"]["tls"][0]["hosts"] == [item["spec"]["rules"][0]["host"]]
        assert notes["nginx.ingress.kubernetes.io/backend-protocol"] == protocol
        assert notes["nginx.ingress.kubernetes.io/proxy-ssl-verify"] == "on"
    found = example_objects("large-model")
    for listener in one(found, "Gateway")["spec"]["listeners"]:
        assert listener["protocol"] == "HTTPS" and listener["tls"]["certificateRefs"]
    policy = one(found, "BackendTLSPolicy")["spec"]
    assert {ref["name"] for ref in policy["targetRefs"]} == {"tandem", "tandem-grpc"}
    front_ends = one(found, "Certificate", "tandem-tls-front-ends")["spec"]
    assert policy["validation"]["hostname"] in front_ends["dnsNames"]
    assert policy["validation"]["caCertificateRefs"][0]["name"] == front_ends["secretName"]
