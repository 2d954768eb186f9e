"""Reads tools, their choice and their calls in OpenAI's form.

Everything here raises InvalidRequest with `field` as OpenAI's `param` names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.api.chats.tools import (
    TOOL_MODES,
    Tool,
    ToolCall,
    ToolMode,
    check_calls,
    check_parameters,
    check_template_kwargs,
    check_tool_name,
    tool_call,
)
from cluster.api.limits import MAX_TOOLS, check_length
from cluster.api.validation import check_text
from engine.errors import InvalidRequest, shown

_TOOL = frozenset({"type", "function"})
_FUNCTION = frozenset({"name", "description", "parameters", "strict"})
_FLAT = _FUNCTION | {"type"}
_CALL = frozenset({"id", "type", "function", "index"})
_CALLED = frozenset({"name", "arguments"})
# A mode, and the name of the tool that must be called, if one must.
ToolChoice = tuple[ToolMode, str]


def read_tools(value: object) -> tuple[Tool, ...]:
    """`tools` of a chat: a list of functions."""
    return tuple(
        _tool(_function(entry, name, _TOOL, _FUNCTION), f"{name}.function")
        for entry, name in _entries(value)
    )


def read_flat_tools(value: object) -> tuple[Tool, ...]:
    """`tools` of a response: the fields of a function stand beside its type."""
    return tuple(_tool(_typed(entry, name, _FLAT), name) for entry, name in _entries(value))


def read_tool_choice(value: object) -> ToolChoice:
    """`tool_choice` of a chat: a mode, or a function to be called."""
    mode = _mode(value)
    if mode is not None:
        return mode, ""
    function = _function(value, "tool_choice", _TOOL, frozenset({"name"}))
    return "required", check_tool_name(function.get("name"), "tool_choice.function.name")


def read_flat_tool_choice(value: object) -> ToolChoice:
    """`tool_choice` of a response: the name of a function stands beside its type."""
    mode = _mode(value)
    if mode is not None:
        return mode, ""
    function = _typed(value, "tool_choice", frozenset({"type", "name"}))
    return "required", check_tool_name(function.get("name"), "tool_choice.name")


def read_tool_calls(value: object, name: str) -> tuple[ToolCall, ...]:
    """`tool_calls` of an assistant's turn."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list, not {shown(value)}", field=name)
    check_calls(value, name)
    return tuple(_call(entry, f"{name}[{index}]") for index, entry in enumerate(value))


def read_template_kwargs(value: object) -> str:
    """`chat_template_kwargs`: an object, as JSON."""
    field = "chat_template_kwargs"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object, not {shown(value)}", field=field)
    return check_template_kwargs(json_text(value, field), field) if value else ""


def _entries(value: object) -> Iterator[tuple[object, str]]:
    """The entries of `tools`, each with its name."""
    if not isinstance(value, list):
        raise InvalidRequest(f"tools must be a list, not {shown(value)}", field="tools")
    check_length(value, MAX_TOOLS, "tools", "tools")
    return ((entry, f"tools[{index}]") for index, entry in enumerate(value))


def _mode(value: object) -> ToolMode | None:
    """The mode that `tool_choice` is; None for a function."""
    found = next((mode for mode in TOOL_MODES if value == mode), None)
    if found is None and isinstance(value, str):
        raise InvalidRequest(
            f"tool_choice must be one of {', '.join(TOOL_MODES)}, or a function, "
            f"not {shown(value)}",
            field="tool_choice",
        )
    return found


def _tool(function: Mapping[str, Any], name: str) -> Tool:
    description, strict = function.get("description"), function.get("strict")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(
            f"{name}.description must be a string, not {shown(description)}",
            field=f"{name}.description",
        )
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(
            f"{name}.strict must be true or false, not {shown(strict)}", field=f"{name}.strict"
        )
    parameters, field = function.get("parameters"), f"{name}.parameters"
    schema = "" if parameters is None else check_parameters(json_text(parameters, field), field)
    return Tool(
        check_tool_name(function.get("name"), f"{name}.name"),
        check_text(description or "", f"{name}.description"),
        schema,
        bool(strict),
    )


def _call(entry: object, name: str) -> ToolCall:
    function = _function(entry, name, _CALL, _CALLED)
    call_id = entry.get("id") if isinstance(entry, dict) else None
    return tool_call(call_id, function.get("name"), function.get("arguments"), name, ".function")


def _function(
    entry: object, name: str, outer: frozenset[str], inner: frozenset[str]
) -> Mapping[str, Any]:
    """The function of an entry of type "function"."""
    function = _typed(entry, name, outer).get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(
            f"{name}.function must be an object, not {shown(function)}", field=f"{name}.function"
        )
    _check_known(function, f"{name}.function", inner)
    return function


def _typed(entry: object, name: str, known: frozenset[str]) -> Mapping[str, Any]:
    """An entry of type "function", whose fields are `known`."""
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{name} must be an object, not {shown(entry)}", field=name)
    if entry.get("type", "function") != "function":
        raise InvalidRequest(
            f"{name}.type: only functions are supported, not {shown(entry['type'])}",
            field=f"{name}.type",
        )
    _check_known(entry, name, known)
    return entry


def _check_known(entry: Mapping[str, Any], name: str, known: frozenset[str]) -> None:
    unknown = next((key for key in entry if key not in known), None)
    if unknown is not None:
        field = f"{name}.{unknown[:64]}"
        raise InvalidRequest(f"unknown field {name}.{shown(unknown[:64])}", field=field)


def json_text(value: object, field: str) -> str:
    """`value` as JSON; raises InvalidRequest, naming `field`."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # `1e999`, which is read as infinity
        raise InvalidRequest(f"{field} has a number that is too large", field=field) from None
    except RecursionError:
        raise InvalidRequest(f"{field} is nested too deep", field=field) from None
    return check_text(text, field)
