"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class StopScanner:
    """Withholds text that may become a stop string, and ends the text before the first match.

    The first match is the stop string that is complete first, and the longest of several. Text is
    scanned character by character, so the result does not depend on how it is cut into pieces.
    The automaton of Knuth, Morris and Pratt (1977) matches a string in constant time per character.
    A match counts only if the whole text before it is one that the output `may_be`.
    """

    def __init__(self, stops: Sequence[str], may_be: Callable[[str], bool] | None = None) -> None:
        self._may_be = may_be
        self._before = ""  # the released text, where `may_be` needs it
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self._withheld = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is certain not to be part of a stop string; sets `found` on a match."""
        if not self._stops:
            return text
        text = self._withheld + text
        for index in range(len(self._withheld), len(text)):
            longest = self._advance(text[index])
            if longest and self._ends(text[: index + 1 - longest]):
                self.found = True
                self._withheld = ""
                return text[: index + 1 - longest]
        certain = len(text) - max(self._matched)
        self._withheld = text[certain:]
        if self._may_be is not None:
            self._before += text[:certain]
        return text[:certain]

    def flush(self) -> str:
        """The withheld text, as no more text will come."""
        withheld, self._withheld = self._withheld, ""
        return withheld

    def _ends(self, text: str) -> bool:
        return self._may_be is None or self._may_be(self._before + text)

    def _advance(self, character: str) -> int:
        """Take one character; the length of the longest stop string that it completes, or 0."""
        longest = 0
        for number, (stop, borders) in enumerate(self._stops):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                longest = max(longest, matched)
                matched = borders[-1]
            self._matched[number] = matched
        return longest


def _borders(text: str) -> list[int]:
    """For every prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        length += text[index] == text[length]
        borders[index] = length
    return borders
