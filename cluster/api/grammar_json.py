"""Reads the grammar of a structured answer from JSON: OpenAI's form, vLLM's forms, and our own.

Everything here raises InvalidRequest with the client's name of the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cluster.api.validation import check_text
from engine.errors import InvalidRequest, shown
from engine.types.grammar import JSON_OBJECT, Grammar, GrammarKind, choice_grammar

_FORMATS = ("text", "json_object", "json_schema")
_SCHEMA_FIELDS = ("name", "description", "schema", "strict")
# vLLM's names, and ours.
_KINDS: Mapping[str, GrammarKind] = {
    "json": "json_schema",
    "json_schema": "json_schema",
    "regex": "regex",
    "grammar": "lark",
    "lark": "lark",
    "choice": "choice",
    "choices": "choice",
}
_OWN = ("json_schema", "regex", "lark", "choices")
_VLLM = ("json", "regex", "grammar", "choice", "json_object")


def read_response_format(value: object) -> Grammar | None:
    """`response_format` of a chat; None for plain text. A schema is enforced, strict or not."""
    field = "response_format"
    form, kind = _form(value, field)
    if kind != "json_schema":
        return _schemaless(form, field)
    _check_fields(form, ("type", "json_schema"), field)
    inner = f"{field}.json_schema"
    return _schema(_object(form.get("json_schema"), inner), _SCHEMA_FIELDS, inner, field)


def read_text_format(value: object) -> Grammar | None:
    """`text.format` of a response: as `response_format`, with the schema beside the type."""
    field = "text.format"
    form, kind = _form(value, field)
    if kind != "json_schema":
        return _schemaless(form, field)
    return _schema(form, ("type", *_SCHEMA_FIELDS), field, field)


def _form(value: object, field: str) -> tuple[dict[str, Any], str]:
    """A format and its type."""
    form = _object(value, field)
    kind = form.get("type")
    if kind not in _FORMATS:
        message = f"{field}.type must be one of {', '.join(_FORMATS)}, not {shown(kind)}"
        raise InvalidRequest(message, field=f"{field}.type")
    return form, str(kind)


def _schemaless(form: dict[str, Any], field: str) -> Grammar | None:
    _check_fields(form, ("type",), field)
    return None if form["type"] == "text" else Grammar("json_schema", JSON_OBJECT, field)


def _schema(named: dict[str, Any], known: tuple[str, ...], inner: str, field: str) -> Grammar:
    """The grammar of a schema with a name; its fields stand in `inner`."""
    _check_fields(named, known, inner)
    if named.get("schema") is None:
        raise InvalidRequest(f"{inner}.schema is required", field=f"{inner}.schema")
    if not isinstance(named.get("strict"), bool | None):
        message = f"{inner}.strict must be true or false, not {shown(named['strict'])}"
        raise InvalidRequest(message, field=f"{inner}.strict")
    return read_grammar("json", named["schema"], field)


def read_structured_outputs(value: object) -> Grammar | None:
    """vLLM's `structured_outputs`: one kind of grammar."""
    return _one_of(value, _VLLM, "structured_outputs")


def read_own_grammar(value: object) -> Grammar | None:
    """`grammar`, as the message `Grammar` over gRPC."""
    return _one_of(value, _OWN, "grammar")


def read_grammar(name: str, value: object, field: str) -> Grammar:
    """The grammar of that name, in any of the forms here; a schema may be a JSON document."""
    kind = _KINDS[name]
    if kind == "choice":
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            message = f"{field}: {name} must be a list of strings, not {shown(value)}"
            raise InvalidRequest(message, field=field)
        grammar = choice_grammar([check_text(text, field) for text in value], field)
    elif kind == "json_schema" and isinstance(value, dict | bool):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        grammar = Grammar(kind, check_text(text, field), field)
    elif isinstance(value, str):
        grammar = Grammar(kind, check_text(value, field), field)
    else:
        form = "an object" if kind == "json_schema" else "a string"
        message = f"{field}: {name} must be {form}, not {shown(value)}"
        raise InvalidRequest(message, field=field)
    grammar.check_size()
    return grammar


def only_one(grammars: Mapping[str, Grammar | None]) -> Grammar | None:
    """The one grammar of a request; raises InvalidRequest where there are several."""
    given = [name for name, grammar in grammars.items() if grammar is not None]
    if len(given) > 1:
        message = f"{given[1]}: the answer has a grammar already, by {given[0]}; give one"
        raise InvalidRequest(message, field=given[1])
    return grammars[given[0]] if given else None


def _one_of(value: object, names: tuple[str, ...], field: str) -> Grammar | None:
    form = _object(value, field)
    given = {name: one for name, one in form.items() if one is not None and one is not False}
    _check_fields(given, names, field)
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest(f"{field}: give one of {', '.join(names)}", field=field)
    name, one = next(iter(given.items()))
    if name == "json_object":
        return Grammar("json_schema", JSON_OBJECT, field)
    return read_grammar(name, one, field)


def _object(value: object, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object, not {shown(value)}", field=field)
    return value


def _check_fields(form: Mapping[str, Any], known: tuple[str, ...], field: str) -> None:
    for name in form:
        if name not in known:
            message = f"{field}: unknown field {shown(name)}; known are {', '.join(known)}"
            raise InvalidRequest(message, field=field)
