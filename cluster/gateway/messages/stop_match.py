"""Finds the stop sequence that ended an answer: its text ends before it, its tokens do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from cluster.api import Tokens

# A character has at most so many tokens, one for each of its bytes.
_TOKENS = 4
_SLACK = 16
_PART = "\ufffd"


class StopMatch:
    """The last tokens of an answer. `text` gives the text of token ids."""

    def __init__(self, stops: Sequence[str], text: Callable[[Sequence[int]], str]) -> None:
        self._stops = stops
        self._text = text
        longest = max(map(len, stops), default=0)
        self._ids: deque[int] = deque(maxlen=_TOKENS * longest + _SLACK if stops else 0)

    def take(self, tokens: Tokens) -> None:
        """Take the next tokens."""
        if self._stops:
            self._ids += tokens.ids

    def found(self) -> str | None:
        """The stop sequence that the last token completed; None where none did.

        As in the engine it is the one that was complete first, and of several the longest.
        """
        if not self._ids:
            return None
        ids = list(self._ids)
        text, before = self._text(ids), self._text(ids[:-1]).rstrip(_PART)
        ends = [
            (at + len(stop), -len(stop), stop)
            for stop in self._stops
            if (at := text.find(stop, max(0, len(before) + 1 - len(stop)))) >= 0
        ]
        return min(ends)[2] if ends else None
