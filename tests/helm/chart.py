"""The chart as Helm's own SDK renders it, and what the tests look at in it.

`python -m tests.helm.chart` writes the golden renders of the examples anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tandem"
GOLDEN = Path(__file__).resolve().parent / "golden"
EXAMPLES = sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))
POOLS = ("router", "prefill", "decode")
Object = dict[str, Any]
# What has no default, because the chart cannot know it: keys, certificates, clients outside.
GATEWAY = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}]
GIVEN: Object = {
    "security": {"apiKeys": {"secretName": "api-keys"}},
    "tls": {"certManager": {"issuerRef": {"name": "authority"}}},
    "networkPolicy": {"clients": GATEWAY},
}
# A value of a Secret.
_MADE = re.compile(r"^  ([\w.-]+): [A-Za-z0-9+/=]{40,}$", re.M)
_HIDDEN = r"  \1: MADE"


def example(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())
    return values


def render(values: Mapping[str, Any] | None = None, folder: Path = CHART) -> dict[str, str]:
    """What each template makes of the values; helm_python.HelmError where they are refused."""
    with helm_python.Chart.load(folder) as chart:
        chart.validate_schema(dict(values or {}))
        files = chart.render(dict(values or {}), name="tandem", namespace="serving")
    return {name: text for name, text in sorted(files.items()) if text.strip()}


def objects(values: Mapping[str, Any] | None = None) -> list[Object]:
    """What these values make, with GIVEN for the sections that they do not have."""
    return documents(render({**GIVEN, **(values or {})}))


def documents(files: Mapping[str, str]) -> list[Object]:
    return [
        document
        for name, text in files.items()
        if not name.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document
    ]


@cache
def example_objects(name: str) -> tuple[Object, ...]:
    return tuple(documents(render(example(name))))


def one(found: list[Object] | tuple[Object, ...], kind: str, name: str | None = None) -> Object:
    (match,) = [
        item
        for item in found
        if item["kind"] == kind and (name is None or item["metadata"]["name"] == name)
    ]
    return match


def cluster_spec(found: list[Object] | tuple[Object, ...]) -> Object:
    """The RayCluster's spec, inside a RayService or by itself."""
    (ray,) = [item for item in found if item["kind"] in ("RayService", "RayCluster")]
    spec: Object = ray["spec"]
    return spec.get("rayClusterConfig", spec)


def groups(found: list[Object] | tuple[Object, ...]) -> dict[str, Object]:
    return {group["groupName"]: group for group in cluster_spec(found)["workerGroupSpecs"]}


def pods(found: list[Object] | tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Every pod template, with the name of what makes it."""
    for item in found:
        if item["kind"] == "StatefulSet":
            yield item["metadata"]["name"], item["spec"]["template"]
    spec = cluster_spec(found)
    yield "head", spec["headGroupSpec"]["template"]
    for name, group in groups(found).items():
        yield name, group["template"]


def files_of(pod: Object) -> dict[str, tuple[str, str]]:
    """The Secret and the key of each file that a pod's Secrets give it, by its path."""
    spec = pod["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    found: dict[str, tuple[str, str]] = {}
    for volume in spec["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            for item in source["secret"]["items"]:
                path = f"{mounts[volume['name']]}/{item['path']}"
                found[path] = (source["secret"]["name"], item["key"])
    return found


def serve_config(found: list[Object] | tuple[Object, ...]) -> Object:
    text = one(found, "ConfigMap", "tandem-config")["data"]["serve.yaml"]
    config: Object = yaml.safe_load(text)
    return config


def golden(name: str) -> str:
    """An example's render as one text, as it is kept: without what is new at every render."""
    return "".join(
        f"# {path.removeprefix('tandem/')}\n{_MADE.sub(_HIDDEN, text).strip()}\n\n"
        for path, text in render(example(name)).items()
    )


if __name__ == "__main__":
    for each in EXAMPLES:
        (GOLDEN / f"{each}.txt").write_text(golden(each))
