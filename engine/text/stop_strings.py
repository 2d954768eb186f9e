"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Holds back text that may become a stop string, and ends it before the first that does.

    The first is the one that is complete first, and of those the longest, as if characters came
    one by one; so the result does not depend on how the text is cut into pieces. Each string is
    matched by the automaton of Knuth, Morris and Pratt (1977): constant time per character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is certain not to be part of a stop string; sets `found` on a match."""
        if not self._stops:
            return text
        text = self._held + text
        for place in range(len(self._held), len(text)):
            longest = self._advance(text[place])
            if longest:
                self.found = True
                self._held = ""
                return text[: place + 1 - longest]
        certain = len(text) - max(self._matched)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """What is still held back: no more text will come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Take one character; the length of the longest stop string that it completes, or 0."""
        longest = 0
        for index, (stop, borders) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                longest = max(longest, matched)
                matched = borders[-1]
            self._matched[index] = matched
        return longest


def _borders(text: str) -> list[int]:
    """For every prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for place in range(1, len(text)):
        while length and text[place] != text[length]:
            length = borders[length - 1]
        length += text[place] == text[length]
        borders[place] = length
    return borders
