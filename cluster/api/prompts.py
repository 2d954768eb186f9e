"""The prompts of a request: text, token ids, a conversation, or a text to be scored."""

from __future__ import annotations

from dataclasses import dataclass

from tandem_client.prompts import ROLES as ROLES
from tandem_client.prompts import ChatMessage as ChatMessage
from tandem_client.prompts import ChatPrompt as ChatPrompt
from tandem_client.prompts import Role as Role
from tandem_client.prompts import TextPrompt as TextPrompt
from tandem_client.prompts import TokenPrompt as TokenPrompt


@dataclass(frozen=True, slots=True)
class ScorePrompt:
    """A text whose own tokens are scored; with a `continuation`, only the continuation's tokens.

    Both are text or both token ids. Each score comes with the `top` likeliest tokens at its
    position.
    """

    prompt: TextPrompt | TokenPrompt
    continuation: TextPrompt | TokenPrompt | None = None
    top: int = 0


Prompt = TextPrompt | TokenPrompt | ChatPrompt | ScorePrompt
