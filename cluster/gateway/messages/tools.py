"""Reads tools and their choice in Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.api.chats.tool_json import json_text
from cluster.api.chats.tools import (
    NO_TOOLS,
    Tool,
    ToolMode,
    ToolUse,
    check_parameters,
    check_tool_name,
    tool_use,
)
from cluster.api.limits import MAX_TOOLS, check_length
from cluster.gateway.messages.fields import choice_of, flag_of, list_of, object_of, string_of
from engine.errors import InvalidRequest, shown

_FIELDS = ("type", "name", "description", "input_schema", "strict")
_SINGLE = "disable_parallel_tool_use"
_IGNORED = ("cache_control", "eager_input_streaming")
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
_MODES: Mapping[str, ToolMode] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def read_tools(value: object) -> tuple[Tool, ...]:
    """`tools`: functions of the client. Tools that a server would run are refused by name."""
    entries = list_of(value, "tools")
    check_length(entries, MAX_TOOLS, "tools", "tools")
    return tuple(_tool(entry, f"tools[{index}]") for index, entry in enumerate(entries))


def read_tool_choice(value: object) -> ToolUse:
    """`tool_choice`: a ToolUse without tools, which `used` adds; raises InvalidRequest."""
    field = "tool_choice"
    found = object_of(value, field, ("type", "name", _SINGLE))
    kind = choice_of(found.get("type"), _MODES, f"{field}.type")
    single = flag_of(found.get(_SINGLE, False), f"{field}.{_SINGLE}")
    named = ""
    if kind == "tool":
        named = check_tool_name(found.get("name"), f"{field}.name")
    elif "name" in found:
        raise InvalidRequest(f"{field}.name needs the type tool", field=f"{field}.name")
    return ToolUse((), _MODES[kind], named, not single)


def used(tools: tuple[Tool, ...], choice: ToolUse = NO_TOOLS) -> ToolUse:
    """The tools with their choice; raises InvalidRequest where they contradict."""
    return tool_use(tools, choice.mode, choice.named, choice.parallel)


def _tool(entry: object, name: str) -> Tool:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if kind not in (None, "custom"):
        message = f"{name}.type: {shown(kind)} is not supported, only custom tools are"
        raise InvalidRequest(message, field=f"{name}.type")
    found = object_of(entry, name, _FIELDS, _IGNORED, _REFUSED)
    field = f"{name}.input_schema"
    if "input_schema" not in found:
        raise InvalidRequest(f"{field} is required", field=field)
    return Tool(
        check_tool_name(found.get("name"), f"{name}.name"),
        string_of(found.get("description", ""), f"{name}.description"),
        check_parameters(json_text(found["input_schema"], field), field),
        flag_of(found.get("strict", False), f"{name}.strict"),
    )
