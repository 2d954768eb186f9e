"""The turns and tools of a chat as transformers gives them to a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.api.chats.tools import Tool, json_object
from cluster.api.prompts import ChatMessage, ChatPrompt
from engine.errors import InvalidRequest
from engine.grammar.schema_check import check_depth
from engine.text.tokenizer import RenderedChat, Tokenizer


def render(tokenizer: Tokenizer, prompt: ChatPrompt) -> RenderedChat:
    """A chat in the model's template; raises InvalidRequest."""
    tools = [*map(template_tool, prompt.use.offered)]
    fields = json_object(prompt.template_kwargs) or {}
    try:
        turns = template_messages(prompt.messages, objects=True)
        return tokenizer.render_chat(turns, tools, fields)
    except InvalidRequest:
        if not any(message.tool_calls for message in prompt.messages):
            raise
        turns = template_messages(prompt.messages, objects=False)
        return tokenizer.render_chat(turns, tools, fields)


def characters(prompt: ChatPrompt) -> int:
    """The characters that the template gets, of turns and tools."""
    turns = sum(
        len(message.content)
        + len(message.reasoning)
        + sum(len(call.arguments) for call in message.tool_calls)
        for message in prompt.messages
    )
    tools = prompt.use.offered
    return turns + sum(len(tool.description) + len(tool.parameters) for tool in tools)


def template_tool(tool: Tool) -> dict[str, Any]:
    """A tool as transformers gives it to a template."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = json.loads(tool.parameters)
    return {"type": "function", "function": function}


def template_messages(messages: Sequence[ChatMessage], *, objects: bool) -> list[Mapping[str, Any]]:
    """The turns as transformers gives them to a template.

    `objects`: arguments are objects, where they are; else they are JSON, as some templates want.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    found: list[Mapping[str, Any]] = []
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            turn["reasoning_content"] = message.reasoning
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": _arguments(call.arguments, objects),
                    },
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id
            turn["name"] = names.get(message.tool_call_id, "")
        found.append(turn)
    return found


def _arguments(text: str, objects: bool) -> object:
    found = json_object(text) if objects else None
    if found is None:
        return text
    try:
        check_depth(found)
    except InvalidRequest:  # what a model wrote, so the chat must go on
        return text
    return found
