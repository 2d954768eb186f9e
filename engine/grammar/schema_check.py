"""Checks of a JSON schema before it is compiled, and the place of what cannot be compiled. Pure.

A place is a JSON pointer (RFC 6901) in a URI fragment: `#/properties/a`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from engine.errors import InvalidRequest, shown
from engine.types.grammar import MAX_GRAMMAR_DEPTH

ROOT = "#"
# Keywords whose values are schemas, lists of schemas, and schemas by name.
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")
_DEFINED = tuple(f"{ROOT}/{name}/" for name in _DEFINITIONS)


def read_schema(text: str) -> dict[str, Any]:
    """The schema in a JSON document; raises InvalidRequest without a field, with the place."""
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"it is not JSON: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidRequest("it has a number too long, or is nested too deep") from None
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise InvalidRequest(f"it must be a JSON object, not {shown(schema)}")
    check_depth(schema)
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("it is not valid Unicode: it has a lone surrogate") from None
    for place, one in _subschemas(schema):
        _check_min_properties(place, one)
    return schema


def check_depth(document: object) -> None:
    """Raise InvalidRequest, with the place, where a document is nested too deep."""
    level: list[tuple[str, object]] = [(ROOT, document)]
    for _ in range(MAX_GRAMMAR_DEPTH):
        level = [inner for place, value in level for inner in _children(place, value)]
        if not level:
            return
    place = level[0][0]
    raise InvalidRequest(f"{_shortened(place)} is nested deeper than {MAX_GRAMMAR_DEPTH} levels")


def deepest(schema: dict[str, Any], fails: Callable[[dict[str, Any]], bool]) -> str:
    """The place of the innermost schema that `fails` by itself, as the whole schema does.

    Definitions stay with each part, so that its references still lead somewhere. They are looked
    into first, because what refers to them fails as they do.
    """
    shared = {name: schema[name] for name in _DEFINITIONS if name in schema}
    place, here, found = ROOT, schema, True
    while found:
        found = False
        parts = _direct(place, here)
        parts.sort(key=lambda part: not part[0].startswith(_DEFINED))
        for inner, one in parts:
            if fails(one | shared):
                place, here, found = inner, one, True
                break
    return _shortened(place)


def _check_min_properties(place: str, schema: dict[str, Any]) -> None:
    """Refuse what duplicate keys could satisfy: a grammar does not know which keys came before."""
    least, required = schema.get("minProperties"), schema.get("required", [])
    if isinstance(least, int) and isinstance(required, list) and least > len(required) + 1:
        message = f"{_shortened(place)}: minProperties is supported up to one more than required"
        raise InvalidRequest(message)


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and all schemas in it, with their places."""
    waiting = [(ROOT, schema)]
    while waiting:
        place, here = waiting.pop()
        yield place, here
        waiting += _direct(place, here)


def _direct(place: str, schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The schemas right inside a schema."""
    found: list[tuple[str, object]] = []
    for name, value in schema.items():
        inner = f"{place}/{_escaped(name)}"
        if name in _SINGLE and isinstance(value, dict):
            found.append((inner, value))
        elif (name in _LISTS and isinstance(value, list)) or (
            name in _NAMED and isinstance(value, dict)
        ):
            found += _children(inner, value)
    return [(inner, one) for inner, one in found if isinstance(one, dict)]


def _children(place: str, value: object) -> list[tuple[str, object]]:
    """The lists and objects right inside a JSON value; nothing for other values."""
    if isinstance(value, dict):
        named = [(f"{place}/{_escaped(name)}", one) for name, one in value.items()]
    elif isinstance(value, list):
        named = [(f"{place}/{index}", one) for index, one in enumerate(value)]
    else:
        return []
    return named


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _shortened(place: str) -> str:
    return place if len(place) <= 200 else f"{place[:200]}..."
