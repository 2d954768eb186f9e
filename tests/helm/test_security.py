"""TLS, keys, the cluster's secret, Ray's token and the password of Redis: on in every example."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helm.chart import (
    EXAMPLES,
    POOLS,
    Object,
    cluster_spec,
    documents,
    example,
    example_objects,
    files_of,
    objects,
    one,
    pods,
    render,
    serve_config,
)

FOLDER = "/etc/tandem-secrets"
OFF = {"tls": {"enabled": False}, "security": {"allowWithoutKeys": True}}


def overrides(found: Any) -> Object:
    (app,) = serve_config(found)["applications"]
    given: Object = app["args"]["overrides"]
    return given


def paths_in(node: Any) -> set[str]:
    """Every file of the secrets' folder that is named somewhere in it."""
    if isinstance(node, dict):
        return set().union(*map(paths_in, node.values()))
    return {node} if isinstance(node, str) and node.startswith(FOLDER) else set()


def environment(pod: Object) -> dict[str, Object]:
    return {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_connection_has_tls_and_every_request_a_key(name: str) -> None:
    given = overrides(example_objects(name))
    assert given["directory.url"].startswith("rediss://")
    assert {"tls.front_ends", "tls.internal", "tls.redis", "security.secret_file"} <= given.keys()
    assert given["router.api_keys"] in ("redis", f"{FOLDER}/keys/keys.yaml")


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_file_of_the_configuration_is_in_the_pods_that_read_it(name: str) -> None:
    found = example_objects(name)
    given = overrides(found)
    all_files = paths_in(given)
    of_routers = paths_in({key: given[key] for key in ("tls.front_ends", "router.api_keys")})
    for pod, template in pods(found):
        if pod in POOLS:
            wanted = all_files if pod == "router" else all_files - of_routers
            assert files_of(template).keys() == wanted, pod
        elif pod == "head":  # which has no replica: what Ray's own client of Redis reads, alone
            env = environment(template)
            assert {item.get("value") for item in env.values()} >= files_of(template).keys() - {
                f"{FOLDER}/internal/ca.crt"
            }
            assert not any("cluster" in file or "keys" in file for file in files_of(template))


@pytest.mark.parametrize("name", EXAMPLES)
def test_secrets_are_read_only_and_for_the_pod_s_group(name: str) -> None:
    for pod, template in pods(example_objects(name)):
        for volume in template["spec"].get("volumes", []):
            if mode := volume.get("projected", volume.get("secret")):
                assert mode["defaultMode"] == 0o440, pod
                (mount,) = [
                    each
                    for each in template["spec"]["containers"][0]["volumeMounts"]
                    if each["name"] == volume["name"]
                ]
                assert mount["readOnly"] is True, pod


def referred(node: Any) -> Iterator[str]:
    """The names of all Secrets that are referred to."""
    if isinstance(node, list):
        for item in node:
            yield from referred(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("secretKeyRef", "secret", "credentials") and "name" in value:
                yield value["name"]
            elif key == "secretName":
                yield value
            else:
                yield from referred(value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_secret_is_made_or_named_by_the_values(name: str) -> None:
    found = example_objects(name)
    made = {item["metadata"]["name"] for item in found if item["kind"] == "Secret"}
    made |= {item["spec"]["secretName"] for item in found if item["kind"] == "Certificate"}
    given = json.dumps(example(name))
    for secret in referred([item for item in found if item["kind"] != "Certificate"]):
        assert secret in made or f'"{secret}"' in given, secret
    assert made or name == "locked-down"  # which makes none: GitOps would change it each time


def test_no_secret_stands_outside_its_object() -> None:
    found = example_objects("laptop-kind")
    rest = json.dumps([item for item in found if item["kind"] != "Secret"])
    values = [
        base64.b64decode(value).decode()
        for item in found
        if item["kind"] == "Secret"
        for value in item["data"].values()
    ]
    assert len(values) > 10
    for value in values:
        assert value not in rest
        assert json.dumps(value)[1:-1] not in rest
    text = json.dumps(example_objects("large-model"))
    assert "redis://:" not in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_ray_s_token_does_not_depend_on_the_operator(name: str) -> None:
    """An operator that does not know authOptions drops it; the containers have the token still."""
    spec = cluster_spec(example_objects(name))
    assert spec["authOptions"]["mode"] == "token"
    secret = {"name": spec["authOptions"]["secretName"], "key": "auth_token"}
    for pod, template in pods(example_objects(name)):
        if pod != "tandem-redis":
            env = environment(template)
            assert env["RAY_AUTH_MODE"]["value"] == "token", pod
            assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == secret, pod


def test_ray_s_autoscaler_has_the_token() -> None:
    scaling = {"application": {"scaling": {"decode": {"min": 1, "max": 5}}}}
    options = cluster_spec(objects(scaling))["autoscalerOptions"]
    assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= {item["name"] for item in options["env"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_redis_has_a_password_and_asks_for_certificates(name: str) -> None:
    found = example_objects(name)
    for pod, template in pods(found):
        if pod in POOLS:
            assert environment(template)["TANDEM_REDIS_PASSWORD"]["valueFrom"]["secretKeyRef"]
    if cluster_spec(found).get("gcsFaultToleranceOptions"):
        options = cluster_spec(found)["gcsFaultToleranceOptions"]
        assert options["redisPassword"]["valueFrom"]["secretKeyRef"]["name"]
    if example(name).get("redis", {}).get("url"):
        return
    settings = one(found, "ConfigMap", "tandem-redis")["data"]
    assert {"port 0", "tls-port 6379", "tls-auth-clients yes"} <= set(
        settings["redis.conf"].splitlines()
    )
    assert "REDIS_PASSWORD" in environment(dict(pods(found))["tandem-redis"])


def test_checks_of_the_routers_go_over_tls() -> None:
    for name in EXAMPLES:
        pod = dict(pods(example_objects(name)))["router"]
        probe = pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]
        assert probe == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
    for name in ("one-gpu-node", "2p4d-two-gpu-types"):
        (endpoint,) = one(example_objects(name), "ServiceMonitor")["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert "insecureSkipVerify" not in endpoint["tlsConfig"]
        assert endpoint["authorization"]["credentials"]["name"] == "tandem-metrics-key"


def test_all_of_it_can_be_switched_off_by_name() -> None:
    found = documents(render({**OFF, "ray": {"auth": "disabled"}}))
    given = overrides(found)
    assert given["directory.url"] == "redis://tandem-redis:6379/0"
    assert not any(key.startswith("tls.") or key == "router.api_keys" for key in given)
    for pod, template in pods(found):
        assert "RAY_AUTH_MODE" not in environment(template), pod
    spec = one(found, "Service", "tandem")["spec"]
    assert spec["ports"][0]["appProtocol"] == "http"
