"""docs/reference/configuration.md: every key, with the documentation of its field.

Types and defaults are those of the dataclasses, meanings the docstrings below their fields, units
follow from the ends of the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cluster.config.descriptions import descriptions, section_in
from cluster.config.schema import TandemConfig
from cluster.reference.markdown import code, table
from kv_transfer.transports.registry import configurable_names

_INTRODUCTION = """\
# Configuration

`make reference` writes this page from the code. [How to configure a cluster](../howto/configure.md)
says how to use it.

The configuration is one YAML document. Every key is optional. A flag of `tandem serve` beats the
file, and the file beats the default. An unknown key is refused with its nearest valid neighbour.
`NAME` stands for a name of your choice.

Secrets and what differs from process to process come from the environment:

| variable | meaning |
|---|---|
| `TANDEM_API_KEY` | The API key that `chat`, `generate`, `batch` and `serve` send. |
| `TANDEM_REDIS_PASSWORD` | The password of Redis, where `directory.url` has none. |
| `TANDEM_LOG` | What is logged: `debug`, `info`, `warning` or `error`. |
| `TANDEM_HEALTH_DIR` | A folder in which each healthy replica touches a file each second. |
| `TANDEM_CONTAINER_LOG` | A file that gets the lines about a replica's start at any level. |
"""
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", NoneType: "null"}
_UNITS = {
    "s": "seconds",
    "ms": "milliseconds",
    "bytes": "bytes",
    "tokens": "tokens",
    "percent": "percent",
}
# The allowed values of a key whose type is text and whose names are in a registry.
_NAMES = {"kv.transport": configurable_names()}
_HEAD = ("key", "type", "default", "unit", "meaning")


@dataclass(frozen=True, slots=True)
class Key:
    """One line of the page; `default` is None where a value must be given, and for sections."""

    path: str
    type: str
    default: str | None
    meaning: str

    @property
    def unit(self) -> str:
        """The unit at the end of the name; empty where the value has none."""
        name, _, end = self.path.rpartition(".")[2].rpartition("_")
        if name.endswith("_per"):
            return f"per {_UNITS[end].removesuffix('s')}"
        return _UNITS.get(end, "")


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_sections()])


def keys(section: type[Any], prefix: str = "") -> Iterator[Key]:
    """Every key of a section, and those of the sections in it."""
    meanings = descriptions(section)
    hints = get_type_hints(section)
    for item in fields(section):
        path, hint = f"{prefix}{item.name}", hints[item.name]
        inner = section_in(hint)
        names = _NAMES.get(path, ())
        kind = ", ".join(map(code, names)) or _type(hint)
        yield Key(path, kind, _default(item), meanings[item.name])
        if inner is not None:
            name = "NAME." if get_origin(hint) is dict else ""
            yield from keys(inner, f"{path}.{name}")


def _sections() -> Iterator[str]:
    found = list(keys(TandemConfig))
    for item in fields(TandemConfig):
        inside = [key for key in found if key.path.startswith(f"{item.name}.")]
        (meaning,) = (key.meaning for key in found if key.path == item.name)
        rows = [
            (code(key.path), key.type, key.default or "", key.unit, key.meaning) for key in inside
        ]
        yield f"## {item.name}\n\n{meaning}\n\n{table(_HEAD, rows)}"


def _type(hint: Any) -> str:
    if section_in(hint):
        return "sections by name" if get_origin(hint) is dict else "section"
    if get_origin(hint) in (Union, UnionType):
        *others, last = (_type(part) for part in get_args(hint))
        return f"{', '.join(others)}, or {last}"
    if get_origin(hint) is Literal:
        return ", ".join(code(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"mapping of {_type(get_args(hint)[1])} by name"
    return _TYPES[hint]


def _default(item: Field[Any]) -> str | None:
    value = item.default if item.default_factory is MISSING else item.default_factory()
    if value is MISSING:
        return None
    if value is None or value in ((), {}, ""):
        return "none"
    if is_dataclass(value) or isinstance(value, dict):
        return None  # what is in it has its own
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(f"{value:.10g}" if isinstance(value, float) else value)
