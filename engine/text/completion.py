"""Makes the text of a choice from its tokens, and finds its end.

The state depends on the tokens alone. Pushing the same tokens into a new object rebuilds it, so a
decode replica can go on after tokens that another replica sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from engine.errors import Internal
from engine.text.detokenizer import Detokenizer
from engine.text.stop_strings import StopScanner
from engine.text.tokenizer import Tokenizer
from engine.types.grammar import TokenMatcher
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import FinishReason


class Piece(NamedTuple):
    """The text that became readable with one token; the last piece has a `finish_reason`."""

    text: str
    finish_reason: FinishReason | None = None


class ChoiceText:
    """The text of one choice. Without a stop string, all pieces joined are the decoded output.

    It ends with "stop" on an end-of-sequence token (unless ignored), a stop token, or a stop
    string. It ends with "length" at `max_tokens`, or where prompt and output fill
    `context_tokens`. The text ends before a stop string; of special tokens those in
    `shown_token_ids` alone give text. With a `matcher` a stop string ends the text only where it
    leaves a complete answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        eos_ids: Collection[int],
        context_tokens: int,
        matcher: TokenMatcher | None = None,
    ) -> None:
        capacity = context_tokens - len(prompt_ids)
        self._most = capacity if sampling.max_tokens is None else min(sampling.max_tokens, capacity)
        self._ends = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self._ends |= frozenset(eos_ids)
        self._detokenizer = Detokenizer(tokenizer, sampling.shown_token_ids)
        self._stops = StopScanner(sampling.stop, None if matcher is None else matcher.accepts)
        self.output_tokens = 0
        self.finish_reason: FinishReason | None = None

    def ends_with(self, token: int) -> bool:
        """Whether this token, as the next one, ends the choice by its id or by the length."""
        return token in self._ends or self.output_tokens + 1 >= self._most

    def push(self, token: int) -> Piece:
        """Take the next output token; raises Internal after the end."""
        if self.finish_reason is not None:
            raise Internal("a token came after the end of its text")
        self.output_tokens += 1
        if token in self._ends:
            return self._end("", "stop")
        text = self._stops.push(self._detokenizer.push(token))
        if self._stops.found:
            self.finish_reason = "stop"
            return Piece(text, "stop")
        if self.output_tokens >= self._most:
            return self._end(text, "length")
        return Piece(text)

    def _end(self, text: str, reason: FinishReason) -> Piece:
        """Release the withheld text; a stop string in it still counts."""
        text += self._stops.push(self._detokenizer.flush())
        if self._stops.found:
            reason = "stop"
        else:
            text += self._stops.flush()
        self.finish_reason = reason
        return Piece(text, reason)
