"""Every rendered object against its schema."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.helm.chart import EXAMPLES, ROOT, Object, example_objects

# Beside the repository; it is not part of it, and a clone elsewhere does not have it.
SCHEMAS = ROOT.parent / "shared" / "schemas"
KUBERNETES = "1.33"
CUSTOM = (
    *("ray.io/", "monitoring.coreos.com/", "gateway.networking.k8s.io/"),
    "cert-manager.io/",
)
# Those of which the repository has the shape itself.
SHAPES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text())


def is_custom(item: Object) -> bool:
    return str(item["apiVersion"]).startswith(CUSTOM)


@cache
def custom_schema(file: Path) -> Any:
    return json.loads(gzip.decompress(file.read_bytes()))


def file_of(item: Object) -> Path:
    version = item["apiVersion"].rsplit("/")[-1]
    return SCHEMAS / f"{item['kind'].lower()}_{version}.json.gz"


def faults(item: Object) -> list[str]:
    """What the schema of a custom resource says against it."""
    if item["kind"] in SHAPES:
        schema, checked = SHAPES[item["kind"]], item["spec"]
    else:
        schema, checked = custom_schema(file_of(item)), item
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(checked)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_own_objects_are_valid(name: str) -> None:
    checked = [item for item in example_objects(name) if not is_custom(item)]
    for item in checked:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    assert {"ConfigMap", "Service", "ServiceAccount"} <= {item["kind"] for item in checked}


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="no ../shared/schemas: custom resources unchecked")
@pytest.mark.parametrize("name", EXAMPLES)
def test_custom_resources_are_valid(name: str) -> None:
    checked = [item for item in example_objects(name) if is_custom(item)]
    assert checked
    for item in checked:
        assert faults(item) == [], f"{item['kind']} {item['metadata']['name']}"


def test_the_examples_show_every_kind_that_the_chart_can_make() -> None:
    kinds = {item["kind"] for name in EXAMPLES for item in example_objects(name)}
    assert kinds == {
        *("ConfigMap", "Service", "ServiceAccount", "StatefulSet", "NetworkPolicy", "Ingress"),
        *("PodDisruptionBudget", "PriorityClass", "RayService", "RayCluster"),
        *("PodMonitor", "ServiceMonitor", "PrometheusRule", "Gateway", "HTTPRoute", "GRPCRoute"),
        *("Secret", "Certificate", "BackendTLSPolicy"),
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_two_objects_have_one_name(name: str) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in example_objects(name)]
    assert len(set(names)) == len(names)
