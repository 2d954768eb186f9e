"""Token ids to text while they arrive; text that later tokens could change is withheld."""

from __future__ import annotations

from collections.abc import Collection

from engine.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# A bound: a character has at most four bytes, so the last four tokens have an incomplete one.
_KEPT = 4
# Tuned: a longer window of tokens is shortened.
_WINDOW = 12
# A bound: a longer run of raw bytes is cut between characters.
_LONGEST_RUN = 32
_ALL = -1


class Detokenizer:
    """Text of one output, released in whole characters.

    A push decodes a short window of the last tokens, because a token's text depends on its
    neighbours. Examples are the bytes of one character, and the space before a word that does not
    open the text. Where the tokenizer knows the token's text, nothing is decoded. The released text
    plus `flush` equals the tokenizer's text of all tokens at once. A special token in `shown` gives
    its text; a new window begins behind it.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = frozenset(shown)
        self._window: list[int] = []
        self._released = 0  # characters of the window's text, or _ALL
        self._whole = False  # whether all text of a window was released
        self._run = 0  # raw byte tokens at the window's end

    def push(self, token: int) -> str:
        """The text that became certain with this token; often the token's own, sometimes empty."""
        if token in self._shown:
            before = self.flush()
            self._window, self._released, self._run, self._whole = [], 0, 0, False
            return before + self._tokenizer.token_text(token)
        if self._whole and (known := self._tokenizer.piece(token)) is not None:
            self._window, self._released = [token], _ALL
            return known
        if self._tokenizer.is_silent(token):
            return ""
        self._count_released()
        self._window.append(token)
        if self._tokenizer.is_byte(token):
            self._run, self._whole = self._run + 1, False
            # A broken byte at the end of a run turns the run into U+FFFD, so a run waits for its
            # end. A very long run (a script outside the vocabulary) is cut between characters.
            if self._run < _LONGEST_RUN or self._run == len(self._window):
                return ""
            return self._cut_run()
        self._run = 0
        text = self._tokenizer.decode(self._window)
        # One incomplete character gives one U+FFFD.
        certain = len(text) - text.endswith(_REPLACEMENT)
        piece = text[self._released : certain]
        self._released = max(self._released, certain)
        # A decoder may leave out the first character of a text; it did where there is text.
        self._whole = bool(text) and self._released == len(text)
        if len(self._window) > _WINDOW:
            self._shorten(len(text) - self._released)
        return piece

    def flush(self) -> str:
        """The withheld text, an incomplete character as U+FFFD. The text ends here."""
        self._count_released()
        withheld = self._tokenizer.decode(self._window)[self._released :]
        self._released += len(withheld)
        return withheld

    def _count_released(self) -> None:
        """Count the characters of the window, where all of them were released."""
        if self._released == _ALL:
            self._released = len(self._tokenizer.decode(self._window))

    def _cut_run(self) -> str:
        text = self._tokenizer.decode(self._window)
        # Each broken byte gives one U+FFFD; a text may have some of its own.
        broken = text.endswith(_REPLACEMENT * self._run)
        if broken and self._run < _LONGEST_RUN + _KEPT:
            return ""
        piece = text[self._released :]
        del self._window[-self._run :]
        self._run = 0
        self._released = len(self._tokenizer.decode(self._window))
        return piece

    def _shorten(self, withheld: int) -> None:
        del self._window[:-_KEPT]
        self._released = len(self._tokenizer.decode(self._window)) - withheld
