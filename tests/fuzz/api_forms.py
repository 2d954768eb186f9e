"""The body of a chat as a response of OpenAI's API, and as a message of Anthropic's.

What a form cannot have is left out, or stands where the form has something like it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.fuzz.chat_messages import Body

# Fields that a response has as a chat has them.
_ALIKE = (
    *("model", "stream", "request_id", "grammar", "structured_outputs", "chat_template_kwargs"),
    *("parallel_tool_calls", "stop", "stop_token_ids", "logit_bias", "temperature", "top_p"),
    *("seed", "ignore_eos", "presence_penalty"),
)
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def response_body(chat: Body) -> Body:
    """The body of `POST /v1/responses`."""
    found = {name: chat[name] for name in _ALIKE if name in chat}
    found["max_output_tokens"] = chat["max_tokens"]
    found["input"] = [item for turn in chat["messages"] for item in _items(turn)]
    for name in chat:
        if name.startswith("guided_"):
            found["structured_outputs"] = {name.removeprefix("guided_"): chat[name]}
    if "tools" in chat:
        found["tools"] = [{"type": one["type"]} | one["function"] for one in chat["tools"]]
    if "tool_choice" in chat:
        choice = chat["tool_choice"]
        found["tool_choice"] = {"type": "function"} | _named(choice) if _named(choice) else choice
    if "response_format" in chat:
        form = chat["response_format"]
        found["text"] = {"format": {"type": form["type"]} | form.get("json_schema", {})}
    if "reasoning_effort" in chat:
        found["reasoning"] = {"effort": chat["reasoning_effort"]}
    if chat.get("seed", 1) % 3 == 0:
        found["background"] = True
    return found


def anthropic_body(chat: Body) -> Body:
    """The body of `POST /v1/messages`."""
    found = {name: chat[name] for name in ("model", "max_tokens", "stream") if name in chat}
    found["messages"] = [_message(turn) for turn in chat["messages"]]
    if "request_id" in chat:
        found["request_id"] = chat["request_id"]
    if "stop" in chat:
        found["stop_sequences"] = chat["stop"] if isinstance(chat["stop"], list) else [chat["stop"]]
    if "tools" in chat:
        found["tools"] = [_tool(one) for one in chat["tools"]]
    if "tool_choice" in chat:
        found["tool_choice"] = _choice(chat)
    if "response_format" in chat:
        form = chat["response_format"]
        schema = form.get("json_schema", {}).get("schema")
        found["output_config"] = {"format": {"type": form["type"], "schema": schema}}
    if "reasoning_effort" in chat:
        found.setdefault("output_config", {})["effort"] = chat["reasoning_effort"]
    if "chat_template_kwargs" in chat:
        found["thinking"] = {"type": "enabled", "budget_tokens": len(chat["chat_template_kwargs"])}
    return found


def _named(choice: Any) -> Body:
    found = choice.get("function", {}) if isinstance(choice, dict) else {}
    return dict(found)


def _items(turn: Body) -> Iterator[Body]:
    if turn.get("reasoning_content") is not None:
        yield {"type": "reasoning", "summary": [], "content": [_part("reasoning_text", turn)]}
    if turn["role"] == "tool":
        output = {"call_id": turn.get("tool_call_id"), "output": turn["content"]}
        yield {"type": "function_call_output"} | output
    else:
        yield {"role": turn["role"], "content": turn["content"] or ""}
    for call in turn.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"]} | call["function"]


def _part(kind: str, turn: Body) -> Body:
    return {"type": kind, "text": turn["reasoning_content"]}


def _message(turn: Body) -> Body:
    if turn["role"] == "tool":
        result = {"tool_use_id": turn.get("tool_call_id"), "content": turn["content"]}
        return {"role": "user", "content": [{"type": "tool_result"} | result]}
    blocks: list[Body] = []
    if turn.get("reasoning_content") is not None:
        blocks.append({"type": "thinking", "thinking": turn["reasoning_content"], "signature": ""})
    if isinstance(turn["content"], str) and turn["content"]:
        blocks.append({"type": "text", "text": turn["content"]})
    for call in turn.get("tool_calls", ()):
        name = call["function"]["name"]
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": name, "input": _input(call["function"])}
        )
    return {"role": turn["role"], "content": blocks}


def _input(function: Body) -> Any:
    try:
        return json.loads(function["arguments"])
    except (RecursionError, TypeError, ValueError):
        return function["arguments"]


def _tool(tool: Body) -> Body:
    names = {"parameters": "input_schema"}
    found = {names.get(name, name): value for name, value in tool["function"].items()}
    kind = {} if tool["type"] == "function" else {"type": tool["type"]}
    return {"input_schema": {"type": "object"}} | kind | found


def _choice(chat: Body) -> Any:
    choice, single = chat["tool_choice"], chat.get("parallel_tool_calls") is False
    more = {"disable_parallel_tool_use": True} if single else {}
    if isinstance(choice, dict):
        return {"type": "tool"} | _named(choice) | more
    return None if choice is None else {"type": _CHOICES.get(choice, choice)} | more
