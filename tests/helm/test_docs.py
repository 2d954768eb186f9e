"""Every values snippet of the pages about Kubernetes is rendered, checked and loaded."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.helm.chart import CHART, ROOT, objects
from tests.helm.test_application import loaded
from tests.helm.test_objects import KUBERNETES, SCHEMAS, faults, is_custom

PAGES = ("deploy-on-kubernetes", "size-a-cluster", "upgrade", "restore", "lock-down")
TEXT = "".join((ROOT / "docs" / "howto" / f"{page}.md").read_text() for page in PAGES)
SNIPPETS = [
    yaml.safe_load(textwrap.dedent(text))
    for text in re.findall(r"^ *```yaml\n(.*?)^ *```", TEXT, re.M | re.S)
]


@pytest.mark.parametrize("values", SNIPPETS, ids=lambda values: "+".join(values))
def test_a_snippet_is_valid_values(values: dict[str, Any], tmp_path: Path) -> None:
    found = objects(values)
    for item in found:
        if not is_custom(item):
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
        elif SCHEMAS.is_dir():
            assert faults(item) == []
    config = loaded(found, tmp_path)
    for section, keys in values.get("application", {}).items():
        for key, value in keys.items():
            if not isinstance(value, dict) and key != "path":  # which comes back absolute
                assert getattr(getattr(config, section), key) == value


def test_named_files_exist() -> None:
    assert len(SNIPPETS) >= 10
    for path in re.findall(r"`((?:helm|docs|templates)/[\w./-]+)`", TEXT):
        place = CHART / path if path.startswith("templates/") else ROOT / path
        assert place.exists(), path
    targets = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+) ", TEXT):
        assert f"\n{target}:" in targets
    for key in re.findall(r"`((?:pools|ray|redis|monitoring|networkPolicy)\.[A-Za-z.]+)`", TEXT):
        node: Any = yaml.safe_load((CHART / "values.yaml").read_text())
        if key.startswith("pools.NAME"):
            node, key = node["poolDefaults"], key.removeprefix("pools.NAME.")
        if key in ("ray.shares", "ray.drain_s"):  # of the application
            continue
        for part in key.split("."):
            assert part in node or part == "pods", key
            node = node.get(part)
