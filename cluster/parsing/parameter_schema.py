"""What a tool's schema says of calls that have a block for each argument, as Qwen3-Coder's.

Which arguments are text, and the grammar of the blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from cluster.api.chats.tools import json_object
from engine.types.grammar import MAX_GRAMMAR_BYTES

# "text": the value is the text itself; "nullable": so it is, unless it is null.
TextKind = Literal["text", "nullable"]
Schema = Mapping[str, Any]

_MOST_REFERENCES = 8
# Bound: schemas that are looked at for the types of all arguments of a tool.
_MOST_STEPS = 10_000
# Bounds: of a key, and of a length in a regular expression.
LONGEST_KEY = 256
_MOST_LENGTH = 4096
# Words that say nothing of the arguments beside their own schemas.
_OF_ROOT = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "title", "description"),
        *("$schema", "$id", "$defs", "definitions", "default", "examples"),
    }
)
_NOTES = frozenset({"title", "description", "default", "examples"})
_OF_TEXT = frozenset({"type", "enum", "const", "minLength", "maxLength"})
_END = "</parameter>"
_LAST = f"\n{_END}\n"
_TEXT = r"/(?s:.{})/ & ~/(?s:.*)<\/parameter>(?s:.*)/"


def text_kinds(parameters: str) -> dict[str, TextKind]:
    """The arguments that are text, by the JSON schema of a tool's parameters."""
    root = json_object(parameters) or {}
    found: dict[str, TextKind] = {}
    budget = [_MOST_STEPS]
    for key, schema in _properties(root).items():
        types = _types(schema, root, budget)
        if types == {"string"}:
            found[key] = "text"
        elif types == {"string", "null"}:
            found[key] = "nullable"
    return found


def is_expressible(parameters: str) -> bool:
    """Whether blocks can be forced to have all that a schema asks for."""
    return not parameters or _rules(0, json_object(parameters) or {}, json.dumps) is not None


def parameter_rules(index: int, parameters: str, json_rule: Callable[[Schema], str]) -> list[str]:
    """The rules in Lark of `args_{index}`, the blocks of a call; any, where that is all to do.

    `json_rule` makes the rule of a value that is JSON.
    """
    found = _rules(index, json_object(parameters) or {}, json_rule) if parameters else None
    if found is not None:
        return found
    key = f'"<parameter=" KEY_{index} ">\\n" text_{index}'
    return [
        f"args_{index}: ({key}){{0,16}}",
        rf"KEY_{index}: /[A-Za-z0-9_.-]{{1,64}}/",
        *_text_rules(f"text_{index}", "*"),
    ]


def _rules(index: int, root: Schema, json_rule: Callable[[Schema], str]) -> list[str] | None:
    """The rules of all arguments in the order of the schema; None where it says more than that."""
    properties, required = _properties(root), root.get("required", [])
    if not set(root) <= _OF_ROOT or root.get("type", "object") != "object":
        return None
    if not isinstance(required, list) or not set(map(str, required)) <= set(properties):
        return None
    definitions = json.dumps(root.get("$defs", {}))
    parts, rules, budget, size = [], [], [_MOST_STEPS], 0
    for number, (key, schema) in enumerate(properties.items()):
        name = f"value_{index}_{number}"
        value = _value_rules(name, schema, root, json_rule, definitions, budget)
        size += sum(map(len, value or ()))
        if value is None or not _is_key(key) or size > MAX_GRAMMAR_BYTES:
            return None
        opening = json.dumps(f"<parameter={key}>\n", ensure_ascii=False)
        parts.append(f"{opening} {name}" if key in required else f"({opening} {name})?")
        rules += value
    blocks = " ".join(parts) or '""'
    return [f"args_{index}: {blocks}", *rules]


def _value_rules(
    name: str,
    schema: Any,
    root: Schema,
    json_rule: Callable[[Schema], str],
    definitions: str,
    budget: list[int],
) -> list[str] | None:
    """The rules of a value with the end of its block; None where they would not be exact."""
    types, schema = _types(schema, root, budget), _resolved(schema, root)
    if types == {"string"}:
        return _exact_text(name, schema)
    if types == {"string", "null"}:
        return _text_rules(name, "*") if _is_plain(schema) else None
    whole = dict(schema) if isinstance(schema, dict) else {}
    text = json.dumps(whole)
    if '"$ref"' in text:
        text += definitions
        whole["$defs"] = root.get("$defs", {})
    if schema in (False, None) or text.count('"$ref"') != text.count('"$ref": "#/$defs/'):
        return None
    return [f"{name}: {name}_json {json.dumps(_LAST)}", f"{name}_json: {json_rule(whole)}"]


def _exact_text(name: str, schema: Schema) -> list[str] | None:
    if not set(schema) - _NOTES <= _OF_TEXT or schema.get("type", "string") != "string":
        return None
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if listed is not None:
        if least or most is not None or not isinstance(listed, list) or not listed:
            return None
        if any(_END in one for one in listed):
            return None
        texts = (json.dumps(f"{one}{_LAST}", ensure_ascii=False) for one in listed)
        return [f"{name}: {' | '.join(texts)}"]
    for length in (least, least if most is None else most):
        if type(length) is not int or not 0 <= length <= _MOST_LENGTH:
            return None
    return _text_rules(name, f"{{{least},{'' if most is None else most}}}")


def _is_plain(schema: Schema) -> bool:
    """Whether every text, and null, is a value."""
    parts = schema.get("anyOf", ()) if isinstance(schema.get("anyOf", ()), list | tuple) else ()
    return set(schema) - _NOTES <= {"type", "anyOf"} and all(set(one) <= {"type"} for one in parts)


def _text_rules(name: str, count: str) -> list[str]:
    """The rules of so many characters, and the end of their block, which is not within them."""
    terminal = name.upper()
    body = _TEXT.replace("{}", count)
    return [f"{name}[lazy]: {terminal} {json.dumps(_LAST)}", f"{terminal}: {body}"]


def _properties(root: Schema) -> dict[str, Any]:
    found = root.get("properties")
    return found if isinstance(found, dict) else {}


def _types(schema: Any, root: Schema, budget: list[int], seen: set[str] | None = None) -> set[str]:
    """The types that a value may have; "any" where the schema does not say, or for too long.

    `budget` counts the schemas that may be looked at. `seen` has the references that were followed.
    """
    seen = set() if seen is None else seen
    budget[0] -= 1
    if not isinstance(schema, dict) or budget[0] < 0:
        return {"any"}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in seen:
            return set()
        seen.add(reference)
        return _types(_referred(reference, root), root, budget, seen)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return set().union(*(_types(one, root, budget, seen) for one in schema[word])) or {
                "any"
            }
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return {
            "string" if isinstance(one, str) else "null" if one is None else "any" for one in values
        }
    kinds = schema.get("type", "any")
    return set(map(str, kinds)) if isinstance(kinds, list) else {str(kinds)}


def _resolved(schema: Any, root: Schema) -> Any:
    """What a schema that is a reference refers to."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, dict) or not {"$ref"} <= set(schema) <= {"$ref"} | _NOTES:
            break
        schema = _referred(schema["$ref"], root)
    return schema


def _referred(reference: object, root: Schema) -> Any:
    found: Any = root
    for part in str(reference).removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _is_key(key: str) -> bool:
    return 0 < len(key) < LONGEST_KEY and key == key.strip() and not set("<>\n") & set(key)
