"""What a client has of a stream, and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.api import Tokens
from engine.errors import InvalidRequest


class Cursor:
    """The tokens that a client has of each choice; absent numbers are 0.

    `passed` gets the Tokens of a stream in order until the cursor is `found`: until the stream has
    shown all that the client has. InvalidRequest names the field `have` of a wrong cursor.
    """

    def __init__(self, have: Sequence[int], choices: int) -> None:
        if len(have) > choices:
            raise _wrong(f"has {len(have)} numbers, and the stream has {choices} choices")
        if any(number < 0 for number in have):
            raise _wrong("must not be negative")
        self._have = (*have, *(0 for _ in range(choices - len(have))))
        self._due = {choice: number for choice, number in enumerate(have) if number}

    @property
    def found(self) -> bool:
        """Whether the stream has shown all that the client has."""
        return not self._due

    def lacks(self, tokens: Tokens) -> bool:
        """Whether the client lacks these tokens; raises InvalidRequest where it has a part."""
        have = self._have[tokens.choice] if tokens.choice < len(self._have) else 0
        if tokens.index + len(tokens.ids) <= have:
            return False
        if tokens.index < have:
            first, last = tokens.index, tokens.index + len(tokens.ids)
            raise _wrong(
                f"[{tokens.choice}] is {have}, inside an event with the tokens {first} to {last}"
            )
        return True

    def passed(self, tokens: Tokens) -> bool:
        """Note tokens of the stream; whether the client lacks them."""
        lacking = self.lacks(tokens)
        if self._due.get(tokens.choice) == tokens.index + len(tokens.ids):
            del self._due[tokens.choice]
        return lacking

    def beyond(self) -> InvalidRequest:
        """The refusal where the stream ends before the cursor was found."""
        choice, have = next(iter(self._due.items()))
        return _wrong(f"[{choice}] is {have}, which is more than the journal has")


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"have{'' if what[0] == '[' else ' '}{what}", field="have")
