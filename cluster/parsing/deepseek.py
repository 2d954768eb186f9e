"""Calls as DeepSeek's models write them, in a block of tokens of their own.

｜tool▁calls▁begin｜ ｜tool▁call▁begin｜ function ｜tool▁sep｜ NAME, a fence of JSON ｜tool▁call▁end｜    V3, R1
｜tool▁calls▁begin｜ ｜tool▁call▁begin｜ NAME ｜tool▁sep｜ {} ｜tool▁call▁end｜                       V3.1
"""  # noqa: E501, RUF002

from __future__ import annotations

from cluster.parsing.answer_delta import AnswerDelta, Trimmed, first_marker, held_back
from cluster.parsing.call_object import ArgumentsReader

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
FUNCTION = "function"
# Bound: characters of a call before its arguments; a longer head is no call.
_HEAD = 512


class DeepSeekParser:
    """Content before the block, and its calls; what follows the block is content again."""

    def __init__(self) -> None:
        self._content = Trimmed(leading=False)
        self._state = "content"
        self._rest = ""
        self._head = ""  # of a call, up to its arguments
        self._arguments: ArgumentsReader | None = None
        self._calls = 0

    def push(self, text: str, delta: AnswerDelta) -> None:
        """Take the next piece of the text, and add what became certain."""
        text, self._rest = self._rest + text, ""
        while text:
            if self._arguments is not None:
                text = self._value(self._arguments, text, delta)
            elif self._state == "call":
                text = self._call(text, delta)
            else:
                text = self._between(text, delta)

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest. A call without arguments was none."""
        if self._state == "content":
            delta.add_content(self._content.push(self._rest))
            if not self._calls:
                delta.add_content(self._content.rest())
        elif self._state == "call" and self._arguments is None:
            delta.add_content(CALL_BEGIN + self._rest)

    def _between(self, text: str, delta: AnswerDelta) -> str:
        """Take text up to a marker; within the block there is none but white space."""
        markers = (CALLS_BEGIN, CALL_BEGIN) if self._state == "content" else (CALL_BEGIN, CALLS_END)
        found = first_marker(text, markers)
        certain = found[0] if found else len(text) - held_back(text, markers)
        if self._state == "content":
            delta.add_content(self._content.push(text[:certain]))
        if found is None:
            self._rest = text[certain:]
            return ""
        marker = found[1]
        self._state = "call" if marker == CALL_BEGIN else "block"
        if marker == CALLS_END:
            self._state = "content"
        return text[certain + len(marker) :]

    def _call(self, text: str, delta: AnswerDelta) -> str:
        """Take the head of a call, up to its arguments."""
        brace, end = text.find("{", 0, _HEAD), text.find(CALL_END, 0, _HEAD)
        if brace < 0 and end < 0 and len(text) < _HEAD:
            self._rest = text
            return ""
        if brace < 0 or 0 <= end < brace:
            self._state = "block"
            return text[end + len(CALL_END) :] if end >= 0 else text[_HEAD:]
        kind, _, name = text[:brace].partition(SEPARATOR)
        if kind.strip() != FUNCTION or not name.strip():
            name = kind
        name = name.strip().partition("\n")[0].strip()
        if not name:
            self._state = "block"
            return text[brace:]
        delta.begin_call(self._calls, name)
        self._arguments = ArgumentsReader()
        return text[brace:]

    def _value(self, arguments: ArgumentsReader, text: str, delta: AnswerDelta) -> str:
        end, certain = arguments.take(text, 0)
        delta.add_arguments(self._calls, certain)
        if arguments.ended:
            self._arguments, self._state = None, "block"
            self._calls += 1
        return text[end:]
