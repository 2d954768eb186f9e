"""Random JSON schemas in the spirit of JSONSchemaBench (Geng et al., 2025), from a seed.

Nested objects and lists, enumerations, patterns, numeric bounds, unions, references and recursion,
and text beyond ASCII. Every one can be satisfied.
"""

from __future__ import annotations

import random

Schema = dict[str, object]

_NAMES = (
    "id",
    "name",
    "tags",
    "größe",
    "a/b",
    "x y",
    '"q"',
    "items",
    "type",
    "價格",
    "t~x",
    "e\\n",
)
_PATTERNS = (r"^[A-Z]{2}-\d{3}$", r"^(red|green|blue)$", r"^[a-f0-9]{8}$", r"^\S+@\S+\.com$", "a+b")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
_TEXTS = ("red", "vert é", "青", "", 'a"b\\c', "line\nbreak", "\U0001f600")


def make_schemas(count: int, seed: int = 0) -> list[Schema]:
    """So many schemas."""
    chosen = random.Random(seed)
    return [_Maker(chosen).document() for _ in range(count)]


class _Maker:
    """Makes one document; `definitions` are the schemas that it may refer to."""

    def __init__(self, chosen: random.Random) -> None:
        self._chosen = chosen
        self._definitions: dict[str, Schema] = {}

    def document(self) -> Schema:
        root = self._object(3)
        if self._definitions:
            root["$defs"] = self._definitions
        if self._chosen.random() < 0.3:
            root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
            root["title"] = root["description"] = "A document of the test"
        return root

    def _any(self, depth: int) -> Schema:
        leaves = (self._string, self._number, self._constant, self._boolean)
        inner = (self._object, self._list, self._tuple, self._union, self._reference, self._map)
        if depth <= 0 or self._chosen.random() < 0.5:
            return self._chosen.choice(leaves)()
        return self._chosen.choice(inner)(depth - 1)

    def _object(self, depth: int) -> Schema:
        names = self._chosen.sample(_NAMES, self._chosen.randint(1, 5))
        required = [name for name in names if self._chosen.random() < 0.7]
        schema: Schema = {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
            "required": required,
        }
        if self._chosen.random() < 0.8:
            schema["additionalProperties"] = False
        elif self._chosen.random() < 0.5:
            schema["additionalProperties"] = self._string()
        return schema

    def _map(self, depth: int) -> Schema:
        schema: Schema = {"type": "object", "maxProperties": self._chosen.randint(1, 3)}
        if self._chosen.random() < 0.5:
            schema |= {"patternProperties": {"^k[0-9]$": self._any(depth)}}
            schema["additionalProperties"] = False
        else:
            schema |= {"additionalProperties": self._any(depth), "minProperties": 1}
        return schema

    def _list(self, depth: int) -> Schema:
        least = self._chosen.randint(0, 2)
        schema: Schema = {"type": "array", "items": self._any(depth), "minItems": least}
        return schema | {"maxItems": least + self._chosen.randint(0, 3)}

    def _tuple(self, depth: int) -> Schema:
        count = self._chosen.randint(1, 3)
        return {
            "type": "array",
            "prefixItems": [self._any(depth) for _ in range(count)],
            "items": False,
            "minItems": count,
        }

    def _union(self, depth: int) -> Schema:
        if self._chosen.random() < 0.5:
            return {"anyOf": [self._any(depth), {"type": "null"}]}
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "value": self._any(depth)},
                    "required": ["kind", "value"],
                    "additionalProperties": False,
                }
                for kind in ("a", "b")
            ]
        }

    def _reference(self, depth: int) -> Schema:
        name = f"part{len(self._definitions)}"
        self._definitions[name] = {"type": "null"}  # its place, while its parts are made
        here: Schema = {"$ref": f"#/$defs/{name}"}
        part = self._object(depth)
        if self._chosen.random() < 0.5:
            properties = part["properties"]
            assert isinstance(properties, dict)
            properties["next"] = {"anyOf": [{"type": "null"}, here]}
        self._definitions[name] = part
        return here

    def _string(self) -> Schema:
        kind = self._chosen.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self._chosen.choice(_PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self._chosen.choice(_FORMATS)}
        least = self._chosen.randint(0, 4)
        if kind == 2:
            most = least + self._chosen.randint(0, 12)
            return {"type": "string", "minLength": least, "maxLength": most}
        return {"type": "string", "maxLength": 40}

    def _number(self) -> Schema:
        least, most = sorted(self._chosen.randint(-1000, 1000) for _ in range(2))
        kind = self._chosen.randrange(5)
        if kind == 0:
            return {"type": "integer", "minimum": least, "maximum": most}
        if kind == 1:
            return {
                "type": "number",
                "exclusiveMinimum": least - 0.5,
                "exclusiveMaximum": most + 0.5,
            }
        if kind == 2:
            return {"type": "integer", "multipleOf": self._chosen.choice((2, 5, 12))}
        return {"type": "integer"} if kind == 3 else {"type": ["number", "null"]}

    def _constant(self) -> Schema:
        if self._chosen.random() < 0.3:
            return {"const": self._chosen.choice((None, 7, True, "só", {"a": [1, "b"]}))}
        texts = self._chosen.sample(_TEXTS, 3)
        return {"enum": [*texts, self._chosen.choice((None, 1.5, False, [1, 2]))]}

    def _boolean(self) -> Schema:
        return {"type": "boolean"}
