"""The checks of the tools of a chat and of the calls of tools in it.

Schemas and arguments are JSON texts, as both APIs carry them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from cluster.api.limits import (
    MAX_TEMPLATE_CHARACTERS,
    MAX_TEMPLATE_FIELDS,
    MAX_TOOL_BYTES,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
    check_length,
)
from engine.errors import InvalidRequest, shown
from engine.grammar.schema_check import check_depth
from protos.convert import valid_text
from tandem_client.tools import NO_TOOLS as NO_TOOLS
from tandem_client.tools import TOOL_MODES as TOOL_MODES
from tandem_client.tools import Tool as Tool
from tandem_client.tools import ToolCall as ToolCall
from tandem_client.tools import ToolCallDelta as ToolCallDelta
from tandem_client.tools import ToolMode as ToolMode
from tandem_client.tools import ToolUse as ToolUse
from tandem_client.tools import whole_calls as whole_calls

_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# What the renderer of a template takes itself, or gives to it.
_TEMPLATE_OWN = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "raise_exception",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_CALL_ID = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def check_tool_name(name: object, field: str) -> str:
    """Return the name of a tool; raises InvalidRequest, naming `field`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field} must be 1 to 128 letters, digits and _ . -, not {shown(name)}", field=field
        )
    return name


def check_call_id(call_id: object, field: str) -> str:
    """Return the id of a call; raises InvalidRequest, naming `field`."""
    if not isinstance(call_id, str) or not _CALL_ID.fullmatch(call_id):
        raise InvalidRequest(
            f"{field} must be 1 to 128 letters, digits and _ . : / -, not {shown(call_id)}",
            field=field,
        )
    return call_id


def tool_call(
    call_id: object, name: object, arguments: object, field: str, function: str = ""
) -> ToolCall:
    """A call in the history; raises InvalidRequest, naming a field in `field`.

    Its name and its arguments stand in `function` of `field`, as ".function".
    """
    inner = field + function
    if not isinstance(arguments, str) or arguments != valid_text(arguments):
        place = f"{inner}.arguments"
        raise InvalidRequest(f"{place} must be a string of JSON", field=place)
    found = check_call_id(call_id, f"{field}.id")
    return ToolCall(found, check_tool_name(name, f"{inner}.name"), arguments)


def check_calls(calls: Sequence[object], field: str) -> None:
    """Raise InvalidRequest where one turn has too many calls."""
    check_length(calls, MAX_TOOL_CALLS, field, "calls")


def tool_use(
    tools: Sequence[Tool], mode: ToolMode, named: str, parallel: bool, field: str = "tools"
) -> ToolUse:
    """The tools of a chat; raises InvalidRequest, naming `field`, where they contradict."""
    check_length(tools, MAX_TOOLS, field, "tools")
    size = sum(len(one.name + one.description + one.parameters) for one in tools)
    if size > MAX_TOOL_BYTES:
        message = f"{field} must have at most {MAX_TOOL_BYTES} characters together, not {size}"
        raise InvalidRequest(message, field=field)
    names = [one.name for one in tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"{field}: two tools have the name {shown(twice)}", field=field)
    if mode == "required" and not tools:
        raise InvalidRequest("tool_choice needs tools", field="tool_choice")
    if named and named not in names:
        raise InvalidRequest(
            f"tool_choice: no tool has the name {shown(named)}", field="tool_choice"
        )
    return ToolUse(tuple(tools), mode, named, parallel)


def check_parameters(text: str, field: str) -> str:
    """Return a schema of parameters as JSON; raises InvalidRequest where it is no object."""
    if not text:
        return ""
    found = json_object(text)
    if found is None:
        raise InvalidRequest(f"{field} must be a JSON schema of an object", field=field)
    _check_depth(found, field)
    return text


def check_template_kwargs(text: str, field: str) -> str:
    """Return the fields for a template as JSON; raises InvalidRequest, naming `field`."""
    if not text:
        return ""
    check_length(text, MAX_TEMPLATE_CHARACTERS, field, "characters of JSON")
    found = json_object(text)
    if found is None:
        raise InvalidRequest(f"{field} must be a JSON object", field=field)
    check_length(found, MAX_TEMPLATE_FIELDS, field, "fields")
    _check_depth(found, field)
    for name in found:
        if not _FIELD.fullmatch(name) or name in _TEMPLATE_OWN:
            raise InvalidRequest(f"{field}: {shown(name)} cannot be set", field=field)
    return text


def with_effort(text: str, effort: str | None) -> str:
    """Fields for a template as JSON, with the effort of reasoning; a field of its name beats it."""
    if effort is None:
        return text
    return json.dumps({"reasoning_effort": effort} | (json_object(text) or {}))


def _check_depth(value: object, field: str) -> None:
    try:
        check_depth(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{field}: {error.message}", field=field) from None


def _finite(number: str) -> float:
    """A float that JSON can have, unlike NaN."""
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(number)
    return found


def json_object(text: str) -> dict[str, Any] | None:
    """The object that a JSON text has; None for a text without one."""
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
