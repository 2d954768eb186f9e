"""Checks of requests, shared by the front ends and the client.

`cluster/api/limits.py` has the bounds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from cluster.api.chats.tools import ToolCall
from cluster.api.limits import (
    MAX_CHOICES,
    MAX_NAME_CHARACTERS,
    MAX_PROMPT_TOKENS,
    check_length,
)
from engine.errors import InvalidRequest, PromptTooLong, shown
from protos.convert import valid_text
from tandem_client.prompts import ROLES, ChatMessage, TextPrompt, TokenPrompt

MAX_TOKEN_ID = 2**32 - 1
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
_STREAM_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_request_id(request_id: str) -> str:
    """Return `request_id` if it is empty or valid in a header; raises InvalidRequest."""
    if request_id and not _REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest(
            "request_id must be 1 to 128 characters: letters, digits and . _ : @ / + = -",
            field="request_id",
        )
    return request_id


def check_stream_id(stream_id: str) -> str:
    """Return the id of a resumable stream if it can be one; raises InvalidRequest."""
    if not _STREAM_ID.fullmatch(stream_id):
        raise InvalidRequest(
            "stream_id must be 1 to 128 characters: letters, digits and _ -", field="stream_id"
        )
    return stream_id


def check_have(have: Sequence[object]) -> tuple[int, ...]:
    """Return the tokens of each choice that a client has; raises InvalidRequest."""
    check_length(have, MAX_CHOICES, "have", "choices")
    for count in have:
        if type(count) is not int or not 0 <= count <= MAX_TOKEN_ID:
            message = f"have must be numbers of tokens, one for each choice, not {shown(count)}"
            raise InvalidRequest(message, field="have")
    return cast("tuple[int, ...]", tuple(have))


def check_tenant(tenant: str) -> str:
    """Return `tenant` if it is a valid name; raises InvalidRequest."""
    if not is_tenant(tenant):
        raise InvalidRequest(
            "tenant must be 1 to 64 characters: letters, digits and . _ -", field="tenant"
        )
    return tenant


def is_tenant(name: str) -> bool:
    """Whether the name is valid for a tenant."""
    return _TENANT.fullmatch(name) is not None


def check_choices(n: int) -> int:
    """Return `n` if one request may have so many choices; raises InvalidRequest."""
    if not 1 <= n <= MAX_CHOICES:
        raise InvalidRequest(f"n must be between 1 and {MAX_CHOICES}, not {shown(n)}", field="n")
    return n


def check_name(name: str, field: str) -> str:
    """Return the name of a model or an endpoint if it has a valid length; raises InvalidRequest."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            f"{field} must have at most {MAX_NAME_CHARACTERS} characters, not {len(name)}",
            field=field,
        )
    return check_text(name, field)


def check_text(text: str, field: str) -> str:
    """Return `text` if it can be encoded; raises InvalidRequest, naming `field`."""
    if text != valid_text(text):
        raise InvalidRequest(f"{field} is not valid Unicode: it has a lone surrogate", field=field)
    return text


def text_prompt(text: str, field: str) -> TextPrompt:
    """`text` as a prompt; raises InvalidRequest, naming `field`, where it is empty or broken."""
    if not text:
        raise InvalidRequest(f"{field} must not be empty", field=field)
    return TextPrompt(check_text(text, field))


def token_prompt(ids: Sequence[object], field: str) -> TokenPrompt:
    """`ids` as a prompt; raises InvalidRequest, naming `field`, unless all are token ids."""
    if not ids:
        raise InvalidRequest(f"{field} must not be empty", field=field)
    if len(ids) > MAX_PROMPT_TOKENS:
        message = (
            f"the prompt is too long: {field} has {len(ids)} token ids; "
            f"the most of any model is {MAX_PROMPT_TOKENS}"
        )
        raise PromptTooLong(message, field=field)
    if not all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in ids):
        for index, token in enumerate(ids):
            token_id(token, f"{field}[{index}]", field)
    return TokenPrompt(cast("tuple[int, ...]", tuple(ids)))


def token_id(value: object, name: str, field: str) -> int:
    """`value` as a token id, in any vocabulary; raises InvalidRequest, naming `field`."""
    if type(value) is not int or not 0 <= value <= MAX_TOKEN_ID:
        raise InvalidRequest(f"{name} must be a token id, not {shown(value)}", field=field)
    return value


def chat_message(
    role: object,
    content: str,
    field: str,
    tool_calls: tuple[ToolCall, ...] = (),
    tool_call_id: str = "",
    reasoning: str = "",
) -> ChatMessage:
    """One turn; raises InvalidRequest, naming `field`, for a role that is not known."""
    for known in ROLES:
        if role == known:
            return ChatMessage(
                known,
                check_text(content, f"{field}.content"),
                tool_calls,
                tool_call_id,
                check_text(reasoning, f"{field}.reasoning_content"),
            )
    raise InvalidRequest(
        f"{field}.role must be one of {', '.join(ROLES)}, not {shown(role)}", field=f"{field}.role"
    )
