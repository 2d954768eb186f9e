"""The prompts of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem_client.tools import NO_TOOLS, ToolCall, ToolUse

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation.

    `tool_calls` and `reasoning` belong to an assistant's turn. A `tool` answers the call with
    `tool_call_id`.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt as text; special tokens are added as the tokenizer does."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids, used unchanged."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered by the model's chat template.

    The template also gets the fields of `template_kwargs`, a JSON object.
    """

    messages: tuple[ChatMessage, ...]
    use: ToolUse = NO_TOOLS
    template_kwargs: str = ""
