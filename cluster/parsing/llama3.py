"""Calls as Llama 3.1 to 3.3 write them: the answer is the object, or several with `;` between.

`<|python_tag|>` may stand before an object. An object is a call if it has the name of a tool:
an answer in JSON may look alike.
"""

from __future__ import annotations

from collections.abc import Collection

from cluster.parsing.answer_delta import AnswerDelta, held_back
from cluster.parsing.call_object import CallObject

PYTHON_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;"


class Llama3Parser:
    """Calls at the beginning of the answer; what follows them, or is none of them, is content."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._call: CallObject | None = None
        self._calls = 0
        self._rest = ""
        self._before = ""  # text before an object, which is content where it is no call
        self._content = False

    def push(self, text: str, delta: AnswerDelta) -> None:
        """Take the next piece of the text, and add what became certain."""
        text, self._rest = self._rest + text, ""
        while text:
            if self._content:
                delta.add_content(text)
                return
            text = self._call_piece(text, delta) if self._call else self._between(text)

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest. An object without a tool's name was no call."""
        if self._content:
            return
        if self._call is not None and not self._call.begun:
            delta.add_content(self._call.raw)
        elif self._call is None and not self._calls:
            delta.add_content(self._before + self._rest)

    def _between(self, text: str) -> str:
        """Take what may stand before an object; returns what is left."""
        kept = text.lstrip(_BETWEEN if self._calls else _BETWEEN[:-1])
        self._before += text[: len(text) - len(kept)]
        if kept.startswith(PYTHON_TAG):
            self._before += PYTHON_TAG
            return kept[len(PYTHON_TAG) :]
        if kept.startswith("{"):
            opening = "" if self._calls else self._before
            self._call = CallObject(self._calls, self._names.__contains__, opening)
            return kept
        if len(kept) == held_back(kept, (PYTHON_TAG,)):
            self._rest = kept
            return ""
        self._content = True
        return kept if self._calls else self._before + kept

    def _call_piece(self, text: str, delta: AnswerDelta) -> str:
        call = self._call
        assert call is not None
        end = call.take(text, 0, delta)
        if call.failed:
            delta.add_content(call.raw)
            self._call, self._content = None, True
        elif call.ended:
            self._call, self._before = None, ""
            self._calls += 1
        return text[end:]
