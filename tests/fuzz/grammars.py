"""Grammars as clients may send them: sound, wrong, contradictory, too large, too deep, too slow."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any

from bench.core.json_schemas import make_schemas

_SOUND = make_schemas(150, seed=46)
_SIZES = (3, 60, 63, 64, 65, 300, 600, 900, 980, 5000)
_DEEP = re.compile(r'"@([a-zA-Z]+) (\d+)"')
_LEVELS = {
    "list": ("[", "]"),
    "object": ('{"a":', "}"),
    "properties": ('{"properties":{"a":', "}}"),
}
_CHAIN = (3, 60, 400, 3000)

PATTERNS = (
    *("a+b", "[a-z]{3}", "(ab|c)+", r"\d{4}-\d{2}", "(?i)é+", "x{3,9}y", ".", r"\p{L}+"),
    *("(", "[", "a{", "a{3,1}", "*", "(?P<n>a)\\1", "(?<=a)b", "(?=a)", r"\p{Foo}", r"\b", "\\"),
    *("", "^$", "^", "a^b", "[^\\x00-\\U0010FFFF]", "[b-a]", "(?z)", "\x00", "\n", "é𝄞", "\ud800"),
    *("(a+)+$", "(a|aa)+$", "(.*a){20}", "(?:a?){30}a{30}", "(a*)*", "(.*)*x", "([^a]|a)*b"),
    *("x{0,65535}", "a{1000000}", "(a{1000}){1000}", "((a{1,9}){1,9}){1,9}", "(.{1,500}){1,500}"),
    *("(" * 300 + "a" + ")" * 300, "a" * 9000, "|".join(["ab"] * 3000), "[a-z]*" * 400),
    *("(?:[a-z]{1,60}[0-9]{1,60}){1,60}", "~a", "a&b", "(?s).*", "(a|b)*a(a|b){14}"),
)
LARKS = (
    *('start: "a" | "b"', 'root ::= "v" [0-9] [0-9]', "start: /[a-z]+/", 'start: "a"{1,4}'),
    *('start: start "a" | "a"', 'start: "a" start?', "start: b", "start:", "", "# only", "\x00"),
    *('start: "', "start: /(/", "start: /a", 'start: ("a"', "start: start", "a: b\nb: a\nstart: a"),
    *("start: <|end|>", "start: /a/ <|end|> /b/", "start: <[257]>", "start: <[0-319]>+"),
    *("start: <[999999]>", "start: <nope>", "start: <[5-2]>", 'start: "<|end|>" "x"'),
    *('%ignore /.*/\nstart: "a"', "%import common.INT\nstart: INT", "%import nope\nstart: X"),
    *('start: %json {"type": "integer"}', "start: %json {", "start: %json 3", "start: %regex {}"),
    *('start: %json {"$ref": "#"}', "start: %lark { }", "start: @other", 'start[lazy]: /.*/ "a"'),
    *("%llguidance {}\nstart: /a/", '%llguidance {"no_forcing": true}\nstart: /a*/', "%llguidance"),
    *("start: a\na[max_tokens=2]: /.*/", 'start[stop="x"]: /.*/', "start[capture]: /a/"),
    *('start[temperature=0.5]: "a"', "start[suffix=/x/]: /a*/", 'start: "a"{0,1000000}'),
    *("start: " + "(" * 300 + '"a"' + ")" * 300, "start: " + '"a" | ' * 4000 + '"b"'),
    *("start: " + " ".join(["a"] * 3000) + '\na: "x"?', "start: a a a a\na: a a | /b*/"),
    *("\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(3000)), 'r3000: "a"']),),
    *(
        "start: (/[a-z]{1,80}/ /[0-9]{1,80}/){1,80}",
        'start: "é" "𝄞" "\\u0000"',
        'root ::= root "a"',
    ),
)


def schema(rng: random.Random) -> Any:
    """A JSON schema, or what a client takes for one."""
    drawn = rng.random()
    if drawn < 0.3:
        return copy.deepcopy(rng.choice(_SOUND))
    if drawn < 0.36:
        return rng.choice(
            [{}, True, False, {"type": "object"}, {"enum": [1, "a"]}, {"type": "null"}]
        )
    return rng.choice(_SCHEMAS)(rng)


def pattern(rng: random.Random) -> str:
    """A regular expression."""
    if rng.random() < 0.6:
        return rng.choice(PATTERNS)
    return "".join(rng.choice(PATTERNS[:40]) for _ in range(rng.randint(1, 4)))


def lark(rng: random.Random) -> str:
    """A grammar in llguidance's form of Lark, or in llama.cpp's."""
    if rng.random() < 0.8:
        return rng.choice(LARKS)
    names = ["start", "a", "b", "C"]
    parts = [*names, '"x"', "/[a-z]/", "|", "?", "*", "(", ")", "{2}", "~ 2", "->", "%json {}"]
    rules = (f"{name}: {' '.join(rng.choices(parts, k=rng.randint(0, 6)))}" for name in names)
    return "\n".join(rules)


def choices(rng: random.Random) -> list[str]:
    """A list of texts."""
    texts = ["yes", "no", "", "é", "a" * 5000, "\x00", "<|end|>", '"', "yesno", "\ud800"]
    return rng.choices(texts, k=rng.choice([0, 1, 2, 3, 1024, 1025]))


def schema_text(rng: random.Random) -> str:
    """A schema as a document, which may be none, or nest deeper than a parser follows."""
    if rng.random() < 0.8:
        return expanded(json.dumps(schema(rng)))
    depth = rng.choice([100, 1000, 20_000])
    opening, closing = rng.choice([('{"items":', "}"), ("[", "]"), ('{"not":', "}")])
    return rng.choice(
        ["", "{", "nul", '{"a"', opening * depth, opening * depth + "1" + closing * depth]
    )


def deep(rng: random.Random) -> str:
    """A stand-in for a deep value, which this process could not write as JSON."""
    return f"@{rng.choice(['list', 'object'])} {rng.choice(_SIZES)}"


def expanded(text: str) -> str:
    """JSON with the deep values in the place of their stand-ins."""

    def written(found: re.Match[str]) -> str:
        word, count = found[1], int(found[2])
        opening, closing = _LEVELS.get(word, (f'{{"{word}":', "}"))
        if word.endswith("Of"):
            opening, closing = f'{{"{word}":[', "]}"
        return opening * count + '{"type":"string"}' + closing * count

    return _DEEP.sub(written, text)


def _nested(rng: random.Random) -> Any:
    word = rng.choice(["items", "not", "anyOf", "allOf", "properties", "additionalProperties"])
    return {"type": "object", "properties": {"a": f"@{word} {rng.choice(_SIZES)}"}}


def _large(rng: random.Random) -> Any:
    count = rng.choice([20, 300, 1500])
    names = [f"{'k' * rng.choice([1, 40])}{number}" for number in range(count)]
    return rng.choice(
        [
            {"enum": names},
            {"type": "object", "required": names},
            {"type": "object", "properties": {one: {"type": "integer"} for one in names}},
            {"anyOf": [{"const": name} for name in names]},
            {"allOf": [{"properties": {name: {}}} for name in names[:200]]},
            {"type": "object", "properties": {one: {} for one in names}, "required": names},
            {"type": "string", "description": "a" * 200_000},
        ]
    )


def _referring(rng: random.Random) -> Any:
    target = rng.choice(
        ["#", "#/$defs/a", "#/$defs/nope", "#/properties/a", "http://127.0.0.1/x", "a", "", "#a%zz"]
    )
    refer = {"$ref": target}
    count = rng.choice(_CHAIN)
    chain: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(count)}
    return rng.choice(
        [
            refer,
            {"$defs": {"a": refer}, "$ref": "#/$defs/a"},
            {"type": "object", "properties": {"a": refer}, "required": ["a"]},
            {"type": "object", "properties": {"a": refer}, "$defs": {"a": {"items": refer}}},
            {"allOf": [refer]},
            {"anyOf": [refer, {"type": "null"}]},
            {"type": "array", "items": refer, "minItems": 1},
            {"$ref": "#/$defs/a0", "$defs": chain | {f"a{count}": {"type": "null"}}},
            {"$ref": 5},
            {"$dynamicRef": target, "$anchor": "a", "$id": "x:"},
        ]
    )


def _worded(rng: random.Random) -> Any:
    """An object with a property of strange words."""
    value = {
        **rng.choice(_WORDS),
        **rng.choice(_WORDS),
        **({"pattern": pattern(rng)} if rng.random() < 0.4 else {}),
    }
    name = rng.choice(["a", "", '"', "\x00", "\ud800", "a\\b", "é" * 300, "__proto__", "<|end|>"])
    return rng.choice([value, {"type": "object", "properties": {name: value}, "required": [name]}])


_WORDS: tuple[dict[str, Any], ...] = (
    *({"type": kind} for kind in ("string", "integer", "array", "object", "nope", 5, [], ["null"])),
    *({"type": "string", "format": one} for one in ("uuid", "date-time", "ipv6", "nope", 3)),
    *({"type": "integer", "multipleOf": one} for one in (0, -1, 7, 1e-300, 1_000_003, 2**70, "a")),
    *({"minimum": one, "type": "number"} for one in (2**70, -1e308, "a", 1e-320)),
    *({"maximum": one, "type": "integer", "exclusiveMinimum": 3} for one in (3, 4, -(2**64))),
    *({"minLength": one, "maxLength": 5} for one in (6, -1, 0, 2**40, 1.5)),
    *({"type": "array", "minItems": one, "maxItems": 4} for one in (5, 4, -1, 10**9)),
    *({"type": "array", "prefixItems": [{}] * one, "items": False} for one in (0, 3, 300)),
    *({"enum": one} for one in ([], [None], [{"a": [1]}], ["\ud800"], "a", [1e400, 10**400])),
    *({"const": one} for one in (1, "a\nb", {"a": {}}, [[]], 0.1)),
    *({word: one} for word in ("not", "if", "contains", "propertyNames") for one in ({}, True)),
    *(
        {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
        {"allOf": [{"type": "null"}, {"enum": [1]}]},
    ),
    *({"patternProperties": {one: {}}} for one in ("^a", "(", ".*", "")),
    *(
        {"unevaluatedProperties": False},
        {"dependentRequired": {"a": ["b"]}},
        {"required": ["a", "a"]},
    ),
    *({"x-guidance": one} for one in ({"lenient": True}, {"whitespace_pattern": ".*"}, 5, {})),
    *({"additionalProperties": one} for one in (False, True, {"type": "integer"}, 5)),
)
_SCHEMAS: tuple[Callable[[random.Random], Any], ...] = (
    _nested,
    _large,
    _referring,
    _worded,
    _worded,
)
