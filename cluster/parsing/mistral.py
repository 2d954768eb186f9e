"""Calls as Mistral's models write them, behind the token `[TOOL_CALLS]`.

[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]
[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[CALL_ID]x[ARGS]{}    since tokenizer version 11
"""

from __future__ import annotations

from cluster.parsing.answer_delta import AnswerDelta, Trimmed, first_marker, held_back
from cluster.parsing.call_object import ArgumentsReader, CallObject

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKERS = (CALLS, ARGS, CALL_ID)
_SPACE = " \t\r\n"
# Bound: characters of a name; longer ones are no call.
_NAME = 256


class MistralParser:
    """Content before the marker, and the calls behind it in either of the two forms."""

    def __init__(self) -> None:
        self._content = Trimmed(leading=False)
        self._state = "content"
        self._rest = ""
        self._call: CallObject | None = None
        self._arguments: ArgumentsReader | None = None
        self._calls = 0

    def push(self, text: str, delta: AnswerDelta) -> None:
        """Take the next piece of the text, and add what became certain."""
        text, self._rest = self._rest + text, ""
        while text:
            if self._call is not None:
                text = self._object(self._call, text, delta)
            elif self._arguments is not None:
                text = self._value(self._arguments, text, delta)
            else:
                text = self._between(text, delta)

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest. A marker without a call behind it was none."""
        if self._call is not None and not self._call.begun:
            delta.add_content(self._content.push(self._call.raw))
        elif self._state == "content":
            delta.add_content(self._content.push(self._rest))
        elif self._state == "first" and not self._calls:
            delta.add_content(self._content.push(CALLS + self._rest))
        else:
            return
        delta.add_content(self._content.rest())

    def _between(self, text: str, delta: AnswerDelta) -> str:
        if self._state in ("content", "after"):
            return self._to_marker(text, delta)
        text = text.lstrip(_SPACE)
        if self._state == "first" and text.startswith("["):
            self._state = "list"
            return text[1:]
        if self._state == "list":
            return self._in_list(text)
        return self._name(text, delta)

    def _to_marker(self, text: str, delta: AnswerDelta) -> str:
        found = first_marker(text, (CALLS,))
        certain = found[0] if found else len(text) - held_back(text, (CALLS,))
        if self._state == "content":
            delta.add_content(self._content.push(text[:certain]))
        if found is None:
            self._rest = text[certain:]
            return ""
        self._state = "first"
        return text[certain + len(CALLS) :]

    def _in_list(self, text: str) -> str:
        """Take what is between two objects; the list ends with what is none."""
        text = text.lstrip(_SPACE + ",")
        if text.startswith("{"):
            opening = "" if self._calls else CALLS + "["
            self._call = CallObject(self._calls, opening=opening)
        elif text:
            self._state = "after"
            return text[1:]
        return text

    def _name(self, text: str, delta: AnswerDelta) -> str:
        """Take a name and what is before its arguments."""
        brace = text.find("{", 0, _NAME)
        if brace < 0 and len(text) < _NAME:
            self._rest = text
            return ""
        name = text[: max(0, brace)].partition(ARGS)[0].partition(CALL_ID)[0].strip()
        if not name:
            self._state = "content"
            return self._marker_again(text, delta)
        delta.begin_call(self._calls, name)
        self._arguments, self._state = ArgumentsReader(), "arguments"
        return text[brace:]

    def _marker_again(self, text: str, delta: AnswerDelta) -> str:
        """The marker was no call's: it is content, if there is no call before it."""
        if not self._calls:
            delta.add_content(self._content.push(CALLS))
        return text

    def _value(self, arguments: ArgumentsReader, text: str, delta: AnswerDelta) -> str:
        end, certain = arguments.take(text, 0)
        delta.add_arguments(self._calls, certain)
        if arguments.ended:
            self._arguments, self._state = None, "after"
            self._calls += 1
        return text[end:]

    def _object(self, call: CallObject, text: str, delta: AnswerDelta) -> str:
        end = call.take(text, 0, delta)
        if call.failed:
            self._call, self._state = None, "content" if not self._calls else "after"
            if not self._calls:
                delta.add_content(self._content.push(call.raw))
        elif call.ended:
            self._call = None
            self._calls += 1
        return text[end:]
