"""Helm's own lint, and what the chart refuses."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from tests.helm.chart import CHART, EXAMPLES, GIVEN, example, render

INFO = 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_lints_the_chart_without_a_finding(name: str) -> None:
    report = helm_python.lint(CHART, example(name), strict=True)
    assert report["errors"] == []
    assert [found for found in report["messages"] if found["severity"] > INFO] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"aplication": {}}, "aplication"),
        ({"application": {"decode": {"max_bach": 1}}}, "max_bach"),
        ({"application": {"decode": {"replicas": "two"}}}, "replicas"),
        ({"application": {"kv": {"transport": "pigeon"}}}, "transport"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"pools": {"prefil": {}}}, "prefil"),
        ({"pools": {"decode": {"resources": {"limits": {"cpu": "many"}}}}}, "cpu"),
        ({"podSecurity": {"runAsUser": 0}}, "runAsUser"),
        ({"redis": {"url": "redis://:secret@host:6379/0"}}, "url"),
        ({"redis": {"url": "rediss://:secret@host:6379/0"}}, "url"),
        ({"image": {"digest": "sha256:1234"}}, "digest"),
        ({"security": {"apiKeys": {}}}, "security.apiKeys"),
        ({"security": {"apiKeys": {"redis": True, "generate": True}}}, "give one of them"),
        ({"tls": {"generate": False}}, "tls.redis.secretName"),
        (
            {"tls": {"redis": {"secretName": "a"}, "frontEnds": {"secretName": "b"}}},
            "tls.internal.secretName",
        ),
        ({"redis": {"url": "redis://host:6379/0"}}, "rediss://"),
        ({"redis": {"url": "rediss://host:6379/0"}}, "redis.passwordSecret.name"),
        ({"tls": {"enabled": False}, "redis": {"url": "rediss://host/0"}}, "needs tls.enabled"),
        ({"monitoring": {"serviceMonitor": True}}, "monitoring.keySecret.name"),
        (
            {"networkPolicy": {}, "service": {"type": "LoadBalancer"}},
            "networkPolicy.clients",
        ),
        (
            {"ingress": {"enabled": True, "httpHost": "a", "grpcHost": "b"}},
            "ingress.tlsSecret",
        ),
        ({"model": {"source": "claim"}}, "model.claim.name"),
        ({"model": {"source": "hub", "hub": {"name": "a/b"}}}, "model.hub.revision"),
        ({"ingress": {"enabled": True}}, "ingress.httpHost"),
        ({"pools": {"decode": {"gpus": 3, "replicasPerPod": 2}}}, "pools.decode: 3 GPUs"),
        (
            {"pools": {"decode": {"gpus": 4, "replicasPerPod": 2}}},
            "pools.decode: a replica computes on one GPU: set gpus to 2, or replicasPerPod to 4",
        ),
        ({"application": {"model": {}}, "applicationFile": "model: {}"}, "give one of the two"),
        ({"applicationFile": "model: ["}, "applicationFile"),
        ({"application": {"endpoints": {"b": {}, "a": {}}}}, "defaultEndpoint"),
        (
            {"application": {"endpoints": {"b": {}, "a": {}}}, "defaultEndpoint": "c"},
            "has no c",
        ),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmError, match=message):
        render({**GIVEN, **values})
