"""The schema of the chart's values, with the section `application` made from the configuration.

    python -m cluster.chart.values_schema > helm/tandem/values.schema.json

So the chart refuses the same unknown keys and wrong types that `tandem serve` does. What the
sections check beyond their types (bounds, combinations) is not in it; the replicas check that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from cluster.config.descriptions import all_sections, descriptions
from cluster.config.schema import TandemConfig
from kv_transfer.transports.registry import configurable_names

BASE = Path(__file__).resolve().parents[2] / "helm" / "values.schema.yaml"
_REFERENCE = "#/$defs/{model}"


def application_schema() -> dict[str, dict[str, Any]]:
    """JSON Schema (2020-12) of each section by its class's name, and of TandemConfig itself."""
    whole = TypeAdapter(TandemConfig).json_schema(ref_template=_REFERENCE)
    sections: dict[str, dict[str, Any]] = whole.pop("$defs")
    sections["KvConfig"]["properties"]["transport"]["enum"] = list(configurable_names())
    sections[TandemConfig.__name__] = whole
    for section in set(all_sections(TandemConfig)):
        for key, meaning in descriptions(section).items():
            sections[section.__name__]["properties"][key]["description"] = meaning
    # A section inside the whole takes the whole's strictness; its own schema does not say so.
    return {name: _closed(part) for name, part in sections.items()}


def chart_schema(base: Path = BASE) -> dict[str, Any]:
    """The whole schema; `base` holds what is the chart's own. OSError where it is not there."""
    schema: dict[str, Any] = yaml.safe_load(base.read_text(encoding="utf-8"))
    sections = application_schema()
    if both := sorted(sections.keys() & schema["$defs"].keys()):
        raise ValueError(f"{base.name} and the configuration both define {', '.join(both)}")
    return {**schema, "$defs": {**schema["$defs"], **sections}}


def _closed(section: dict[str, Any]) -> dict[str, Any]:
    return {**section, "additionalProperties": False}


def main() -> int:
    """Write the schema to stdout."""
    json.dump(chart_schema(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
