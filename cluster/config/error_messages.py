"""The faults of a configuration document, one line each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_QUOTED = re.compile(r"'(\w+)'")
# The end of the place of a value that is not "auto".
_AUTO = "literal['auto']"
_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
}


def describe(error: ValidationError, root: type[Any], source: str) -> str:
    """All faults of a document, each with its full key path."""
    faults = error.errors(include_url=False)
    # A value that is neither a number nor "auto" has a fault for each of the two.
    either = {fault["loc"][:-1] for fault in faults if fault["loc"][-1:] == (_AUTO,)}
    lines = [_line(fault, root, either) for fault in faults if fault["loc"][-1:] != (_AUTO,)]
    return "\n".join(f"{source}: {line}" for line in lines)


def nearest(key: str, root: type[Any]) -> str | None:
    """The valid key path that `key` most likely stands for."""
    parent, _, leaf = key.rpartition(".")
    valid = list(_key_paths(root, parent))
    leaves: dict[str, str] = {}
    for path in valid:
        leaves.setdefault(path.rpartition(".")[2], path)
    siblings = {
        path.rpartition(".")[2]: path for path in valid if path.rpartition(".")[0] == parent
    }
    if len(leaf) > 2 and (longer := [name for name in siblings if name.startswith(leaf)]):
        return siblings[longer[0]]
    if close := difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.6):
        return siblings[close[0]]
    close = difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.8)
    return leaves[close[0]] if close else None


def _line(fault: ErrorDetails, root: type[Any], either: set[tuple[int | str, ...]]) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    kind, value = fault["type"], fault["input"]
    if fault["loc"][:-1] in either:
        key = key.rpartition(".")[0]
        return f"{key}: expected {_EXPECTED[kind]} or 'auto', not {value!r}"
    if kind == "unexpected_keyword_argument":
        return _unknown(key, nearest(key, root))
    if kind == "missing":
        return f"{key}: this key is missing"
    if kind == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{key}.{message}" if key else message
    if kind == "literal_error" and fault["loc"][-1] == "[key]":
        parent = key.removesuffix(f".{value}.[key]")
        close = difflib.get_close_matches(value, _QUOTED.findall(fault["ctx"]["expected"]), n=1)
        return _unknown(f"{parent}.{value}", f"{parent}.{close[0]}" if close else None)
    if kind == "literal_error":
        return f"{key}: expected {fault['ctx']['expected']}, not {value!r}"
    if kind in _EXPECTED:
        return f"{key}: expected {_EXPECTED[kind]}, not {value!r}"
    return f"{key}: {fault['msg']}"


def _unknown(key: str, close: str | None) -> str:
    return f"{key}: unknown key" + (f"; did you mean {close}?" if close else "")


def _key_paths(section: type[Any], named: str, prefix: str = "") -> Iterator[str]:
    """Every key path of a section; mappings are entered by the names that `named` uses."""
    hints = get_type_hints(section)
    for item in fields(section):
        path, hint = f"{prefix}{item.name}", hints[item.name]
        yield path
        if inner := _section(hint):
            yield from _key_paths(inner, named, f"{path}.")
        elif get_origin(hint) is dict and named.startswith(f"{path}."):
            name = named.removeprefix(f"{path}.").split(".")[0]
            if inner := _section(get_args(hint)[1]):
                yield from _key_paths(inner, named, f"{path}.{name}.")


def _section(hint: Any) -> type[Any] | None:
    """The section that a key holds, also one that may be left out; None for another value."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return next((one for one in kinds if isinstance(one, type) and is_dataclass(one)), None)
