"""One schema: the committed file is the one that the configuration's classes give."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from cluster.chart.values_schema import application_schema, chart_schema
from cluster.config.schema import TandemConfig
from tests.helm.chart import CHART


def test_the_committed_schema_is_current() -> None:
    assert json.loads((CHART / "values.schema.json").read_text()) == chart_schema(), (
        "make helm-schema"
    )


def test_every_section_and_key_is_in_it_and_nothing_else_may_be() -> None:
    schema = application_schema()
    for name, hint in get_type_hints(TandemConfig).items():
        if is_dataclass(hint):
            section = schema[hint.__name__]
            assert section["properties"].keys() == {item.name for item in fields(hint)}, name
    assert all(section["additionalProperties"] is False for section in schema.values())


def test_the_values_and_the_chart_have_the_same_keys() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == chart_schema()["properties"].keys() - {"global"}


def test_a_name_may_not_stand_for_two_shapes(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("$defs: {KvConfig: {}}")
    with pytest.raises(ValueError, match="KvConfig"):
        chart_schema(base)
