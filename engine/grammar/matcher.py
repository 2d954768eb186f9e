"""A compiled grammar, and its state behind the tokens of one answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.errors import Internal, InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher

_BITS = 32
_SHOWN_CHARACTERS = 200
# In llguidance's errors: of a token that the grammar does not take. Others are of its limits.
_NOT_TAKEN = "doesn't satisfy the grammar"


class CompiledGrammar:
    """A grammar that is compiled for one tokenizer; each answer gets a matcher of its own.

    `on_bytes` compiles it once more, for texts. `vocabulary` counts the tokens of a mask.
    """

    def __init__(
        self,
        tokens: LLMatcher,
        on_bytes: Callable[[], LLMatcher],
        eos_ids: Collection[int],
        vocabulary: int,
    ) -> None:
        self._tokens = tokens
        self._new_on_bytes = on_bytes
        self._on_bytes: LLMatcher | None = None
        self._eos_ids = eos_ids
        self._vocabulary = vocabulary

    def know_texts(self) -> None:
        """Do the slow part of `matcher` with `stops`."""
        if self._on_bytes is None:
            self._on_bytes = self._new_on_bytes()

    def matcher(self, stop_ids: Collection[int] = (), *, stops: bool = False) -> GrammarMatcher:
        """A matcher at the start of an answer; the `stop_ids` end it, as the end tokens do.

        Only a matcher with `stops` knows whether a text is complete.
        """
        ends = {*self._eos_ids, *(end for end in stop_ids if end < self._vocabulary)}
        on_bytes = None
        if stops:
            self.know_texts()
            assert self._on_bytes is not None
            on_bytes = self._on_bytes.deep_copy()
        return GrammarMatcher(self._tokens.deep_copy(), on_bytes, ends, self._vocabulary)


class GrammarMatcher:
    """The state of a grammar behind the tokens of one answer. Implements `TokenMatcher`.

    `follow` and `allow` belong to one thread at a time, and `accepts` to another.
    """

    def __init__(
        self,
        tokens: LLMatcher,
        on_bytes: LLMatcher | None,
        ends: Collection[int],
        vocabulary: int,
    ) -> None:
        self.tokens = tokens
        self.words = -(-vocabulary // _BITS)
        self._ends = frozenset(ends)
        # The bits of the end tokens, word by word.
        bits = np.zeros(self.words, dtype=np.uint32)
        for end in ends:
            bits[end // _BITS] |= np.uint32(1 << end % _BITS)
        self._end_words = np.flatnonzero(bits)
        self._end_bits = bits[self._end_words]
        self._followed = 0
        self._on_bytes = on_bytes
        self._text = b""

    def follow(self, tokens: Sequence[int], start: int) -> None:
        """Move to the state behind the tokens from `start` on, which begin an answer.

        Earlier calls had a part of them. Raises Internal where the grammar has no such state, and
        InvalidRequest where it became too complex.
        """
        more = list(tokens[start + self._followed :])
        if more and not self.tokens.consume_tokens(more):
            self._check_complexity()
            raise Internal(f"the answer left its grammar: {_first_line(self.tokens)}")
        self._followed += len(more)

    def finish(self, mask: NDArray[np.int32]) -> None:
        """Complete the mask of llguidance, a bit for each token: only a complete answer ends.

        Raises InvalidRequest where the grammar became too complex, or allows no token.
        """
        if self.tokens.is_error():
            self._check_complexity()
            raise Internal(f"the grammar has no next token: {_first_line(self.tokens)}")
        unsigned = mask.view(np.uint32)
        if self.tokens.is_accepting():
            unsigned[self._end_words] |= self._end_bits
        else:
            unsigned[self._end_words] &= ~self._end_bits
            if not unsigned.any():
                at = f"behind {self._followed} tokens of the answer"
                raise InvalidRequest(f"the grammar allows no next token {at}")

    def _check_complexity(self) -> None:
        """Raise InvalidRequest where a limit of the compiler ended the matcher."""
        if _NOT_TAKEN not in self.tokens.get_error():
            at = f"behind {self._followed} tokens of the answer"
            raise InvalidRequest(f"the grammar is too complex {at}: {_first_line(self.tokens)}")

    def ends_with(self, token: int) -> bool:
        """Whether this token ends an answer by its id."""
        return token in self._ends

    def accepts(self, text: str) -> bool:
        """Whether this text is a complete answer."""
        matcher = self._on_bytes
        if matcher is None:
            raise Internal("this matcher does not know texts")
        new = text.encode("utf-8", "replace")
        same = len(new) if self._text.startswith(new) else _shared(self._text, new)
        if same < len(self._text):
            matcher.rollback(len(self._text) - same)
        consumed = matcher.try_consume_tokens(list(new[same:]))
        self._text = new[: same + consumed]
        return len(self._text) == len(new) and matcher.is_accepting()


def _shared(one: bytes, other: bytes) -> int:
    """The number of leading bytes that two texts share."""
    if other.startswith(one):
        return len(one)
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def _first_line(matcher: LLMatcher) -> str:
    return matcher.get_error().partition("\n")[0][:_SHOWN_CHARACTERS] or matcher.stop_reason()
