"""Finds the end of a JSON value in a text that comes in pieces."""

from __future__ import annotations

import re

_IN_STRING = re.compile(r'["\\]')
# No "<" stands outside of strings, so one ends a broken value: a marker begins there.
_OUTSIDE = re.compile(r'["{}\[\]<]')
_SCALAR_END = re.compile(r"[,}\]\s<]")


class JsonValue:
    """Takes the characters of one value, from its first one on; `ended` once it is whole.

    It looks at strings and brackets alone, so that broken JSON ends, too.
    """

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._string = False
        self._escaped = False
        self._scalar = False

    def take(self, text: str, at: int) -> int:
        """Take what belongs to the value from `at` on; returns where it ends, or the text does."""
        if self._scalar or (not self._string and not self._depth and text[at] not in '"{['):
            self._scalar = True
            end = _SCALAR_END.search(text, at)
            self.ended = end is not None
            return len(text) if end is None else end.start()
        while at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            found = (_IN_STRING if self._string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            if found.group() == "<":
                self.ended = True
                return found.start()
            at = found.end()
            self._step(found.group())
            if not self._string and not self._depth:
                self.ended = True
                return at
        return at

    def _step(self, mark: str) -> None:
        if mark == "\\":
            self._escaped = True
        elif mark == '"':
            self._string = not self._string
        else:
            self._depth += 1 if mark in "{[" else -1
