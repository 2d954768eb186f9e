"""Reads the fields of OpenAI's API that have several forms, and sorts the others.

Everything here raises InvalidRequest with `field` as OpenAI's `param` names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from cluster.api import ChatMessage, TextPrompt, TokenPrompt
from cluster.api.chats.tool_json import read_tool_calls
from cluster.api.chats.tools import check_call_id
from cluster.api.chats.turns import check_turns
from cluster.api.limits import MAX_CHOICES, check_conversation, check_length
from cluster.api.validation import chat_message, check_text, text_prompt, token_id, token_prompt
from engine.errors import InvalidRequest, shown
from engine.types.sampling_params import check_count, check_stop

# Fields of OpenAI's API that do not change the answer here.
IGNORED = frozenset(
    {
        "guided_decoding_backend",
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Fields that would change the answer and are not supported, with the values that change nothing.
REFUSED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_whitespace_pattern": (),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# `include_obfuscation` requests padding; no chunk is padded.
_STREAM_OPTIONS = frozenset({"include_usage", "include_obfuscation", "continuous_usage_stats"})
# Bound: characters of an unknown field's name that are compared and shown.
_NAME_CHARACTERS = 64
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"}
)
_MESSAGE_IGNORED = frozenset({"name", "refusal", "annotations"})
_MESSAGE_REFUSED = ("audio", "function_call")


def sift(
    body: Mapping[str, Any],
    known: Collection[str],
    ignored: Collection[str] = IGNORED,
    refused: Mapping[str, tuple[object, ...]] = REFUSED,
    prefix: str = "",
) -> dict[str, Any]:
    """The fields of `body` that are `known` and not null; refuses fields that change the answer.

    `prefix` is the place of an inner object in the body.
    """
    kept = {}
    for name, value in body.items():
        if name in known:
            if value is not None:
                kept[name] = value
        elif name in refused:
            if value is not None and not any(_same(value, idle) for idle in refused[name]):
                raise InvalidRequest(f"{prefix}{name} is not supported", field=prefix + name)
        elif name not in ignored:
            raise unknown_field(name, prefix, known)
    return kept


def read_messages(value: object) -> tuple[ChatMessage, ...]:
    """`messages`: a list of turns whose content is a string or a list of text parts."""
    if not isinstance(value, list):
        raise InvalidRequest(f"messages must be a list, not {shown(value)}", field="messages")
    check_conversation(value, _parts, "messages", "messages", "parts")
    found = tuple(_message(entry, f"messages[{index}]") for index, entry in enumerate(value))
    check_turns(found, "messages")
    return found


def read_prompts(value: object) -> tuple[TextPrompt | TokenPrompt, ...]:
    """`prompt`: a string, a list of strings, a list of token ids, or a list of such lists."""
    if isinstance(value, str):
        return (text_prompt(value, "prompt"),)
    if not isinstance(value, list):
        raise InvalidRequest(
            f"prompt must be a string or a list, not {shown(value)}", field="prompt"
        )
    if not value:
        raise InvalidRequest("prompt must not be empty", field="prompt")
    if isinstance(value[0], str | list):
        check_length(value, MAX_CHOICES, "prompt", "prompts")
        return tuple(_one_prompt(entry, f"prompt[{index}]") for index, entry in enumerate(value))
    return (token_prompt(value, "prompt"),)


def read_stop(value: object, field: str = "stop") -> tuple[str, ...]:
    """`stop`: a string or a list of strings."""
    texts = value if isinstance(value, list) else [value]
    check_count("stop", texts, field)
    found = []
    for text in texts:
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{field} must be a string or a list of strings, not {shown(text)}", field=field
            )
        check_stop(text, field)
        found.append(check_text(text, field))
    return tuple(found)


def read_stop_token_ids(value: object) -> tuple[int, ...]:
    """`stop_token_ids`: a list of token ids."""
    field = "stop_token_ids"
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} must be a list, not {shown(value)}", field=field)
    check_count(field, value)
    return tuple(token_id(token, f"{field}[{index}]", field) for index, token in enumerate(value))


def read_stream_options(value: object) -> dict[str, bool]:
    """`stream_options`: an object of a few flags."""
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"stream_options must be an object, not {shown(value)}", field="stream_options"
        )
    for name, flag in value.items():
        if name not in _STREAM_OPTIONS:
            raise unknown_field(name, "stream_options.", _STREAM_OPTIONS)
        if not isinstance(flag, bool):
            field = f"stream_options.{name}"
            raise InvalidRequest(f"{field} must be true or false, not {shown(flag)}", field=field)
    return value


def read_logit_bias(value: object) -> dict[int, float]:
    """`logit_bias`: an object from token ids, written as strings, to numbers."""
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"logit_bias must be an object, not {shown(value)}", field="logit_bias"
        )
    check_count("logit_bias", value)
    bias = {}
    for token, amount in value.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise InvalidRequest(
                f"logit_bias: keys must be token ids, not {shown(token)}", field="logit_bias"
            )
        if type(amount) not in (int, float) or not -1e6 <= amount <= 1e6:
            raise InvalidRequest(
                f"logit_bias: the bias of {token} must be a number between -100 and 100, "
                f"not {shown(amount)}",
                field="logit_bias",
            )
        bias[int(token)] = float(amount)
    return bias


def first_fault(error: ValidationError) -> InvalidRequest:
    """The first error of a model, on one line."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ""
    for part in found["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    if found["type"] == "missing":
        return InvalidRequest(f"{path} is required", field=path)
    reason = found["msg"].replace("Input should be", "must be")
    return InvalidRequest(f"{path} {reason[:1].lower()}{reason[1:]}", field=path)


def _one_prompt(entry: object, name: str) -> TextPrompt | TokenPrompt:
    if isinstance(entry, str):
        return text_prompt(entry, name)
    if isinstance(entry, list):
        return token_prompt(entry, name)
    raise InvalidRequest(
        f"{name} must be a string or a list of token ids, not {shown(entry)}", field=name
    )


def _message(entry: object, name: str) -> ChatMessage:
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{name} must be an object, not {shown(entry)}", field=name)
    for key, value in entry.items():
        if key in _MESSAGE_FIELDS or key in _MESSAGE_IGNORED:
            continue
        if key not in _MESSAGE_REFUSED:
            raise unknown_field(key, f"{name}.", _MESSAGE_FIELDS)
        if value:
            raise InvalidRequest(f"{name}.{key} is not supported", field=f"{name}.{key}")
    role, content = entry.get("role"), entry.get("content")
    role = "system" if role == "developer" else role
    calls, call_id = entry.get("tool_calls") or [], entry.get("tool_call_id")
    if content is None and (calls or role == "assistant"):
        content = ""  # an answer without text, as clients keep it in their histories
    reasoning = entry.get("reasoning_content") or entry.get("reasoning") or ""
    if not isinstance(reasoning, str):
        field = f"{name}.reasoning_content"
        raise InvalidRequest(f"{field} must be a string, not {shown(reasoning)}", field=field)
    return chat_message(
        role,
        _content(content, f"{name}.content"),
        name,
        tool_calls=read_tool_calls(calls, f"{name}.tool_calls"),
        tool_call_id="" if call_id is None else check_call_id(call_id, f"{name}.tool_call_id"),
        reasoning=reasoning,
    )


def _content(value: object, name: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{name} must be a string or a list of text parts, not {shown(value)}", field=name
        )
    return "\n".join(_part(part, f"{name}[{index}]") for index, part in enumerate(value))


def _part(part: object, name: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{name} must be a text part, not {shown(part)}", field=name)
    if part.get("type") != "text":
        raise InvalidRequest(
            f"{name}.type: only text is supported, not {shown(part.get('type'))}",
            field=f"{name}.type",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{name}.text must be a string, not {shown(text)}", field=f"{name}.text"
        )
    return text


def _parts(message: object) -> int:
    """The number of the parts of a message."""
    content = message.get("content") if isinstance(message, dict) else None
    return len(content) if isinstance(content, list) else 0


def _same(value: object, idle: object) -> bool:
    """Equal in JSON's sense, where 0 is not false."""
    return type(value) is type(idle) and value == idle


def unknown_field(name: str, prefix: str, known: Collection[str]) -> InvalidRequest:
    """The refusal of a field that is none of the `known` ones behind `prefix`."""
    name = name[:_NAME_CHARACTERS]
    near = get_close_matches(name, sorted(known), 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return InvalidRequest(f"unknown field {prefix}{shown(name)}{hint}", field=f"{prefix}{name}")
