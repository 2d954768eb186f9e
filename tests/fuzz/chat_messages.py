"""The gRPC message of a request whose JSON body is given."""

from __future__ import annotations

import json
from typing import Any

from tandem_client.messages import TOOL_CHOICES
from tandem_client.protos import inference_pb2 as wire
from tests.fuzz.grammars import expanded

Body = dict[str, Any]


def message_of(body: Body) -> wire.GenerateRequest:
    """The request of a body over gRPC; what a message cannot have is its text."""
    request = wire.GenerateRequest(request_id=_text(body.get("request_id", "")))
    sampling = request.sampling
    sampling.max_tokens = body["max_tokens"]
    sampling.ignore_eos = "ignore_eos" in body
    sampling.logit_bias.update({int(k): float(v) for k, v in body.get("logit_bias", {}).items()})
    sampling.stop_token_ids.extend(body.get("stop_token_ids", ()))
    request.n = body.get("n", 1)
    for name, value in body.items():
        if name in ("structured_outputs", "grammar"):
            _set_grammar(sampling.grammar, *next(iter(value.items())))
        elif name.startswith("guided_"):
            _set_grammar(sampling.grammar, name.removeprefix("guided_"), value)
        elif name == "response_format" and "json_schema" in value:
            _set_grammar(sampling.grammar, "json", value["json_schema"]["schema"])
    if "prompt" in body:
        request.text = _text(body["prompt"])
    else:
        _set_chat(request.chat, body)
    return request


def _set_grammar(grammar: wire.Grammar, kind: str, value: Any) -> None:
    if kind.startswith("choice"):
        grammar.choices.texts.extend(map(_text, value))
    else:
        field = {"regex": "regex", "grammar": "lark", "lark": "lark"}.get(kind, "json_schema")
        setattr(grammar, field, _text(value))


def _set_chat(chat: wire.Chat, body: Body) -> None:
    for turn in body["messages"]:
        message = chat.messages.add(role=_text(turn["role"]), content=_text(turn["content"] or ""))
        message.tool_call_id = _text(turn.get("tool_call_id") or "")
        message.reasoning = _text(turn.get("reasoning_content", ""))
        for call in turn.get("tool_calls", ()):
            named = call["function"]
            message.tool_calls.add(
                id=_text(call["id"]),
                name=_text(named["name"]),
                arguments=_text(named["arguments"]),
            )
    for tool in (one["function"] for one in body.get("tools", ())):
        chat.tools.add(
            name=_text(tool["name"]),
            description=_text(tool.get("description", "")),
            parameters=_text(tool.get("parameters", "")),
            strict=bool(tool.get("strict")),
        )
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        chat.tool_choice = wire.TOOL_CHOICE_REQUIRED
        chat.named_tool = _text(choice.get("function", {}).get("name", ""))
    elif choice is not None:
        chat.tool_choice = TOOL_CHOICES.get(choice, 77)
    chat.single_call = body.get("parallel_tool_calls") is False
    if "chat_template_kwargs" in body or "reasoning_effort" in body:
        fields = body.get("chat_template_kwargs", {})
        chat.template_kwargs = _text(fields | {"reasoning_effort": body.get("reasoning_effort")})


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else expanded(json.dumps(value))
    return text.encode("utf-8", "replace").decode()
