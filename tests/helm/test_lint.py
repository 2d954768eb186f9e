"""Helm's own lint, and what the chart refuses."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from tests.helm.chart import CHART, EXAMPLES, example, render

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
        ({"model": {"source": "claim"}}, "model.claim.name"),
        ({"model": {"source": "hub", "hub": {"name": "a/b"}}}, "model.hub.revision"),
        ({"ingress": {"enabled": True}}, "ingress.httpHost"),
        ({"pools": {"decode": {"gpus": 3, "replicasPerPod": 2}}}, "pools.decode: 3 GPUs"),
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
        render(values)
