"""Chats and the parts of their answers as `tandem.v1` messages, and back."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.api.chats.tools import (
    Tool,
    ToolCallDelta,
    ToolUse,
    check_calls,
    check_parameters,
    check_template_kwargs,
    check_tool_name,
    tool_call,
    tool_use,
)
from cluster.api.chats.turns import check_turns
from cluster.api.limits import MAX_MESSAGES, check_length
from cluster.api.prompts import ChatMessage, ChatPrompt
from cluster.api.validation import chat_message, check_text
from engine.errors import InvalidRequest
from protos.convert import valid_text
from tandem_client.messages import TOOL_CHOICES
from tandem_client.protos import inference_pb2

_MODE_OF = {wire: mode for mode, wire in TOOL_CHOICES.items()}
_MODE_OF[inference_pb2.TOOL_CHOICE_UNSPECIFIED] = "auto"


def chat_from_proto(wire: inference_pb2.Chat) -> ChatPrompt:
    """The chat in a message; raises InvalidRequest."""
    if not wire.messages:
        raise InvalidRequest("chat.messages must not be empty", field="chat.messages")
    check_length(wire.messages, MAX_MESSAGES, "chat.messages", "messages")
    messages = tuple(
        _message(message, f"chat.messages[{index}]") for index, message in enumerate(wire.messages)
    )
    check_turns(messages, "chat.messages")
    kwargs = check_template_kwargs(wire.template_kwargs, "chat.template_kwargs")
    return ChatPrompt(messages, _use(wire), kwargs)


def deltas_to_proto(deltas: Sequence[ToolCallDelta], wire: inference_pb2.Tokens) -> None:
    """Put the pieces of calls into a message."""
    for one in deltas:
        wire.tool_calls.add(
            index=one.index,
            id=one.id,
            name=valid_text(one.name),
            arguments=valid_text(one.arguments),
        )


def _message(wire: inference_pb2.ChatMessage, field: str) -> ChatMessage:
    check_calls(wire.tool_calls, f"{field}.tool_calls")
    calls = tuple(
        tool_call(one.id, one.name, one.arguments, f"{field}.tool_calls[{index}]")
        for index, one in enumerate(wire.tool_calls)
    )
    return chat_message(
        wire.role,
        wire.content,
        field,
        tool_calls=calls,
        tool_call_id=wire.tool_call_id,
        reasoning=wire.reasoning,
    )


def _use(wire: inference_pb2.Chat) -> ToolUse:
    mode = _MODE_OF.get(wire.tool_choice)
    if mode is None:
        raise InvalidRequest("tool_choice has no known value", field="chat.tool_choice")
    if wire.named_tool and mode != "required":
        message = "chat.named_tool needs TOOL_CHOICE_REQUIRED"
        raise InvalidRequest(message, field="chat.named_tool")
    tools = [_tool(one, f"chat.tools[{index}]") for index, one in enumerate(wire.tools)]
    return tool_use(tools, mode, wire.named_tool, not wire.single_call, "chat.tools")


def _tool(wire: inference_pb2.Tool, field: str) -> Tool:
    return Tool(
        check_tool_name(wire.name, f"{field}.name"),
        check_text(wire.description, f"{field}.description"),
        check_parameters(wire.parameters, f"{field}.parameters"),
        wire.strict,
    )
