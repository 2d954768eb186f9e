"""The prompts of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: Role
    content: str


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
    """A conversation, rendered by the model's chat template."""

    messages: tuple[ChatMessage, ...]
