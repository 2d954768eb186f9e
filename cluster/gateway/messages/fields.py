"""Reads the parts that many fields of Anthropic's API have, and the small fields.

Everything here raises InvalidRequest with the client's name of the field.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.api.grammar_json import read_grammar
from cluster.api.validation import check_name, check_text
from cluster.gateway.openai_fields import read_stop, sift
from engine.errors import InvalidRequest, shown
from engine.types.grammar import Grammar

NOTHING: Mapping[str, tuple[object, ...]] = {}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_THINKING = ("enabled", "adaptive", "disabled")
_DISPLAYS = ("summarized", "omitted")
_MOST_BUDGET = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request says of reasoning: fields for the chat template, and whether it is `shown`."""

    fields: Mapping[str, object]
    shown: bool = True


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """The model's effort, empty for its default, and the form of the answer."""

    effort: str = ""
    grammar: Grammar | None = None


def object_of(
    value: object,
    field: str,
    known: Collection[str],
    ignored: Collection[str] = ("cache_control",),
    refused: Mapping[str, tuple[object, ...]] = NOTHING,
) -> dict[str, Any]:
    """The known fields of an object that are not null; refuses others."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object, not {shown(value)}", field=field)
    return sift(value, known, ignored, refused, f"{field}.")


def list_of(value: object, field: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} must be a list, not {shown(value)}", field=field)
    return value


def string_of(value: object, field: str) -> str:
    """A string that can be encoded."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string, not {shown(value)}", field=field)
    return check_text(value, field)


def flag_of(value: object, field: str) -> bool:
    """A flag."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{field} must be true or false, not {shown(value)}", field=field)
    return value


def choice_of(value: object, known: Collection[str], field: str) -> str:
    """One of the known strings."""
    if not isinstance(value, str) or value not in known:
        message = f"{field} must be one of {', '.join(known)}, not {shown(value)}"
        raise InvalidRequest(message, field=field)
    return value


def read_stop_sequences(value: object) -> tuple[str, ...]:
    """`stop_sequences`: a list of strings."""
    field = "stop_sequences"
    return read_stop(list_of(value, field), field)


def read_metadata(value: object) -> None:
    """`metadata`: the id of a user, which changes nothing."""
    user = object_of(value, "metadata", ("user_id",)).get("user_id", "")
    check_name(string_of(user, "metadata.user_id"), "metadata.user_id")


def read_thinking(value: object) -> Thinking:
    """`thinking`: the switches that chat templates know, and whether the answer shows it."""
    field = "thinking"
    found = object_of(value, field, ("type", "budget_tokens", "display"))
    on = choice_of(found.get("type"), _THINKING, f"{field}.type") != "disabled"
    fields: dict[str, object] = {"enable_thinking": on, "thinking": on}
    budget = found.get("budget_tokens")
    if budget is None and found["type"] == "enabled":
        raise InvalidRequest(f"{field}.budget_tokens is required", field=f"{field}.budget_tokens")
    if budget is not None:
        if type(budget) is not int or not 1 <= budget <= _MOST_BUDGET:
            message = (
                f"{field}.budget_tokens must be a number of tokens of at least 1 and at most "
                f"{_MOST_BUDGET}, not {shown(budget)}"
            )
            raise InvalidRequest(message, field=f"{field}.budget_tokens")
        fields["thinking_budget"] = budget
    display = choice_of(found.get("display", "summarized"), _DISPLAYS, f"{field}.display")
    return Thinking(fields, shown=display != "omitted")


def read_output_config(value: object) -> OutputConfig:
    """`output_config`: effort, and the form of the answer."""
    field = "output_config"
    found = object_of(value, field, ("effort", "format"))
    effort = found.get("effort")
    return OutputConfig(
        "" if effort is None else choice_of(effort, _EFFORTS, f"{field}.effort"),
        _format(found["format"], f"{field}.format") if "format" in found else None,
    )


def read_output_format(value: object) -> Grammar:
    """`output_format`: the earlier name of `output_config.format`."""
    return _format(value, "output_format")


def template_kwargs(thinking: Thinking | None, effort: str) -> str:
    """The fields for the chat template, as JSON; empty for none."""
    fields = {} if thinking is None else dict(thinking.fields)
    if effort:
        fields["reasoning_effort"] = effort
    return json.dumps(fields) if fields else ""


def _format(value: object, field: str) -> Grammar:
    found = object_of(value, field, ("type", "schema"))
    choice_of(found.get("type"), ("json_schema",), f"{field}.type")
    if "schema" not in found:
        raise InvalidRequest(f"{field}.schema is required", field=f"{field}.schema")
    schema = found["schema"]
    if not isinstance(schema, dict):
        message = f"{field}.schema must be an object, not {shown(schema)}"
        raise InvalidRequest(message, field=f"{field}.schema")
    return read_grammar("json", schema, f"{field}.schema")
