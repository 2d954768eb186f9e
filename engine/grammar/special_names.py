"""Gives llguidance a tokenizer whose special tokens no text can name.

llguidance tokenizes the text that a grammar forces. So the text of a special token became that
token, which is no text, and the grammar had no next token. Under a random name no text does.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

# Strings, regular expressions and comments of Lark, and the name of a special token.
_PARTS = re.compile(
    r'"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*|(<[^<>\s\[\]]+>)'
)


class SpecialNames:
    """The special tokens of a tokenizer, by their own names and by random ones.

    `document` is the JSON of the `tokenizers` library; it gets the random names.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        key = secrets.token_hex(8)
        added = [one for one in document.get("added_tokens", ()) if one["special"]]
        self._ids: dict[str, int] = {one["content"]: one["id"] for one in added}
        self._texts = {token: text for text, token in self._ids.items()}
        self._hidden = {text: f"<{key}{token}>" for text, token in self._ids.items()}
        for one in added:
            one["content"] = self._hidden[one["content"]]
        self._rename(document["model"])

    def text(self, token: int) -> str:
        """The text of a special token; empty for any other."""
        return self._texts.get(token, "")

    def numbered(self, lark: str) -> str:
        """A grammar in Lark with the ids of special tokens in the place of their names."""

        def number(found: re.Match[str]) -> str:
            token = self._ids.get(found[1] or "")
            return found[0] if token is None else f"<[{token}]>"

        return _PARTS.sub(number, lark)

    def own(self, message: str) -> str:
        """A message with the tokens' own names."""
        for text, hidden in self._hidden.items():
            message = message.replace(hidden, text)
        return message

    def _rename(self, model: dict[str, Any]) -> None:
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {
                self._hidden.get(text, text): token for text, token in vocabulary.items()
            }
        else:
            model["vocab"] = [[self._hidden.get(text, text), score] for text, score in vocabulary]
        if model.get("unk_token") in self._hidden:
            model["unk_token"] = self._hidden[model["unk_token"]]


def largest_id(document: dict[str, Any]) -> int:
    """The largest id of a token in a tokenizer's JSON."""
    vocabulary = document["model"]["vocab"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    added = (token["id"] for token in document.get("added_tokens", ()))
    return max([*ids, *added], default=0)
