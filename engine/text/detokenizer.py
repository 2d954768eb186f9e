"""Token ids to text while they arrive: only what later tokens cannot change is released."""

from __future__ import annotations

from engine.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# A character has at most four bytes, so the last four tokens hold any that is incomplete.
_KEPT = 4
_WINDOW = 12
_LONGEST_RUN = 32


class Detokenizer:
    """Text of one output, released in whole characters.

    A short window of the last tokens is decoded on every push, because a token's text depends on
    its neighbours: bytes of one character, the space that opens a word but not the text. What is
    released plus `flush` equals the tokenizer's text of all tokens at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._released = 0  # characters of the window's text
        self._run = 0  # raw byte tokens at the window's end

    def push(self, token: int) -> str:
        """The text that this token made certain; often its own, sometimes empty."""
        if self._tokenizer.is_silent(token):
            return ""
        self._window.append(token)
        if self._tokenizer.is_byte(token):
            self._run += 1
            # A broken byte at the end of a run turns all of it into U+FFFD, so it waits until it
            # ends. Very long ones (a script outside the vocabulary) are cut between characters.
            if self._run < _LONGEST_RUN or self._run == len(self._window):
                return ""
            return self._cut_run()
        self._run = 0
        text = self._tokenizer.decode(self._window)
        # One incomplete character gives one U+FFFD.
        certain = len(text) - text.endswith(_REPLACEMENT)
        piece = text[self._released : certain]
        self._released = max(self._released, certain)
        if len(self._window) > _WINDOW:
            self._shorten(len(text) - self._released)
        return piece

    def flush(self) -> str:
        """What is still held, an incomplete character as U+FFFD. The text ends here."""
        rest = self._tokenizer.decode(self._window)[self._released :]
        self._released += len(rest)
        return rest

    def _cut_run(self) -> str:
        text = self._tokenizer.decode(self._window)
        # Broken, each byte gives one U+FFFD; a text may have some of its own.
        broken = text.endswith(_REPLACEMENT * self._run)
        if broken and self._run < _LONGEST_RUN + _KEPT:
            return ""
        piece = text[self._released :]
        del self._window[-self._run :]
        self._run = 0
        self._released = len(self._tokenizer.decode(self._window))
        return piece

    def _shorten(self, held: int) -> None:
        del self._window[:-_KEPT]
        self._released = len(self._tokenizer.decode(self._window)) - held
