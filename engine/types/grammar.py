"""The grammar of a structured answer: the client's request for it, and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem_client.grammar import (
    GRAMMAR_KINDS,
    MAX_GRAMMAR_BYTES,
    MAX_GRAMMAR_CHOICES,
    MAX_REGEX_BYTES,
    Grammar,
    GrammarKind,
    choice_grammar,
)

__all__ = [
    "COMPILE_S",
    "GRAMMAR_KINDS",
    "JSON_OBJECT",
    "MAX_GRAMMAR_BYTES",
    "MAX_GRAMMAR_CHOICES",
    "MAX_GRAMMAR_DEPTH",
    "MAX_REGEX_BYTES",
    "Grammar",
    "GrammarKind",
    "TokenMatcher",
    "choice_grammar",
]

# A promise: the public limit of how deep a grammar nests.
MAX_GRAMMAR_DEPTH = 64
# Promise: the CPU time in which a grammar compiles.
COMPILE_S = 2.0

# Any JSON object, for `response_format: json_object`.
JSON_OBJECT = '{"type":"object"}'


class TokenMatcher(Protocol):
    """The state of a grammar behind the tokens of one answer; a function of their ids alone."""

    def accepts(self, text: str) -> bool:
        """Whether this text is a complete answer. Later calls come with the same text or more."""
        ...

    def follow(self, tokens: Sequence[int], start: int) -> None:
        """Move to the state behind the tokens from `start` on; earlier calls had a part of them."""
        ...
