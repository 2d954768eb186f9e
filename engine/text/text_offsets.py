"""Where in a text each of its tokens begins."""

from __future__ import annotations

import codecs

from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer


class TextOffsets:
    """The offsets of the tokens of one text, in characters, token by token.

    A token that is a part of a character has the offset of the character. A token without text,
    such as a special token, has the offset of what follows it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._characters = 0
        self._run = codecs.getincrementaldecoder("utf-8")("replace")
        self._in_run = 0

    def push(self, token: int) -> int:
        """Take the next token; where its text begins."""
        offset = self._characters + self._in_run
        released = self._detokenizer.push(token)
        self._characters += len(released)
        if self._tokenizer.is_byte(token) and not released:
            # The detokenizer withholds a run of raw bytes until its end.
            self._in_run += len(self._run.decode(self._tokenizer.token_bytes(token)))
        elif not self._tokenizer.is_silent(token):
            self._run.reset()
            self._in_run = 0
        return offset
