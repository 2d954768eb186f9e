"""Calls as Hermes and Qwen write them, each an object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from cluster.parsing.answer_delta import AnswerDelta, Trimmed, first_marker, held_back
from cluster.parsing.call_object import CallObject

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARKERS = (OPEN, CLOSE)


class HermesParser:
    """Content outside of the blocks, and a call from each object inside of one."""

    def __init__(self) -> None:
        self._content = Trimmed(leading=False)
        self._rest = ""
        self._call: CallObject | None = None
        self._closing = False  # a call has ended, and its block has not
        self._calls = 0

    def push(self, text: str, delta: AnswerDelta) -> None:
        """Take the next piece of the text, and add what became certain."""
        text, self._rest = self._rest + text, ""
        while text:
            text = self._call_piece(text, delta) if self._call else self._text(text, delta)

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest. A block without a name was no call."""
        if self._closing or (self._call is not None and self._call.begun):
            return
        raw = self._rest if self._call is None else self._call.raw
        delta.add_content(self._content.push(raw))
        if not self._calls:
            delta.add_content(self._content.rest())

    def _text(self, text: str, delta: AnswerDelta) -> str:
        """Take content up to a block, or the end of a block; returns what is left."""
        found = first_marker(text, MARKERS if self._closing else (OPEN,))
        if found is None:
            held = held_back(text, MARKERS if self._closing else (OPEN,))
            if not self._closing:
                delta.add_content(self._content.push(text[: len(text) - held]))
            self._rest = text[len(text) - held :]
            return ""
        at, marker = found
        if not self._closing:
            delta.add_content(self._content.push(text[:at]))
        self._closing = False
        if marker == OPEN:
            self._call = CallObject(self._calls, opening=OPEN)
        return text[at + len(marker) :]

    def _call_piece(self, text: str, delta: AnswerDelta) -> str:
        call = self._call
        assert call is not None
        end = call.take(text, 0, delta)
        if call.failed:
            delta.add_content(self._content.push(call.raw))
            self._call = None
        elif call.ended:
            self._call, self._closing = None, True
            self._calls += 1
        return text[end:]
