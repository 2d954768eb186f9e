"""Calls as Qwen3-Coder writes them, with a block for each argument.

<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>

The value of a parameter whose schema says string is text, any other is JSON if it can be read so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.parsing.answer_delta import AnswerDelta, Trimmed, first_marker, held_back
from cluster.parsing.hermes import CLOSE, OPEN
from cluster.parsing.parameter_schema import LONGEST_KEY, TextKind

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MARKERS = (OPEN, CLOSE, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END)
# Where a call ends, if need be without its own end.
_ENDS = (FUNCTION_END, CLOSE, OPEN, FUNCTION)
# The template shows the values of Python in earlier calls.
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_SPACE = " \t\r\n"


class Qwen3CoderParser:
    """Content outside of the blocks, and the calls in them.

    `tools` have in `texts` how the values of their parameters are read.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool["function"] for tool in tools]
        self._texts = {one["name"]: one.get("texts", {}) for one in functions}
        self._content = Trimmed(leading=False)
        self._state = "content"
        self._rest = ""
        self._raw = ""  # of a block that is no call yet
        self._name = ""
        self._keys = 0  # of the call
        self._value = ParameterValue(None)
        self._calls = 0

    def push(self, text: str, delta: AnswerDelta) -> None:
        """Take the next piece of the text, and add what became certain."""
        text, self._rest = self._rest + text, ""
        while text:
            if self._state == "block":
                text = self._block(text, delta)
            elif self._state == "name":
                text = self._take_name(text, delta)
            elif self._state == "key":
                text = self._take_key(text, delta)
            elif self._state == "value":
                text = self._take_value(text, delta)
            else:
                text = self._to_marker(text, delta)

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest. A block without a name was no call."""
        if self._state == "value":
            delta.add_arguments(self._calls, self._value.take(self._rest))
        elif self._state in ("content", "block", "name"):
            delta.add_content(self._content.push(self._raw + self._rest))
            if not self._calls:
                delta.add_content(self._content.rest())

    def _to_marker(self, text: str, delta: AnswerDelta) -> str:
        """Take content, or what is nothing between two blocks, up to a marker."""
        markers: tuple[str, ...] = (OPEN, FUNCTION)
        if self._state == "call":
            markers = (PARAMETER, *_ENDS)
        elif self._state == "ended":
            markers = (CLOSE, *markers)
        found = first_marker(text, markers)
        certain = found[0] if found else len(text) - held_back(text, markers)
        if self._state == "content":
            delta.add_content(self._content.push(text[:certain]))
        if found is None:
            self._rest = text[certain:]
            return ""
        self._enter(found[1], delta)
        return text[certain + len(found[1]) :]

    def _enter(self, marker: str, delta: AnswerDelta) -> None:
        if marker == PARAMETER:
            self._state = "key"
            return
        if self._state == "call":
            delta.add_arguments(self._calls, "}" if self._keys else "{}")
            self._calls += 1
        states = {OPEN: "block", FUNCTION: "name", FUNCTION_END: "ended", CLOSE: "content"}
        self._state = states[marker]
        self._raw = marker if marker in (OPEN, FUNCTION) else ""

    def _block(self, text: str, delta: AnswerDelta) -> str:
        """Take what is before the name of the first call in a block."""
        found = text.lstrip(_SPACE)
        self._raw += text[: len(text) - len(found)]
        if found.startswith(FUNCTION):
            self._state = "name"
            self._raw += FUNCTION
            return found[len(FUNCTION) :]
        if FUNCTION.startswith(found):
            self._rest = found
            return ""
        return self._no_call(found, delta)

    def _no_call(self, text: str, delta: AnswerDelta) -> str:
        delta.add_content(self._content.push(self._raw))
        self._state, self._raw = "content", ""
        return text

    def _take_name(self, text: str, delta: AnswerDelta) -> str:
        found, text = self._to_bracket(text)
        if found is None:
            return text
        if not found.strip():
            return self._no_call(text, delta)
        self._name, self._raw, self._keys = found.strip(), "", 0
        self._state = "call"
        delta.begin_call(self._calls, self._name)
        return text[len(found) + 1 :]

    def _take_key(self, text: str, delta: AnswerDelta) -> str:
        found, text = self._to_bracket(text)
        if found is None:
            return text
        key = found.strip()
        self._state = "call"
        if not key:
            return text
        opening = ", " if self._keys else "{"
        delta.add_arguments(self._calls, f"{opening}{_quoted(key)}: ")
        self._keys += 1
        self._state = "value"
        self._value = ParameterValue(self._texts.get(self._name, {}).get(key))
        return text[len(found) + 1 :]

    def _to_bracket(self, text: str) -> tuple[str | None, str]:
        """A name up to its bracket, which is empty for none; None where more text must come."""
        end = text.find(">", 0, LONGEST_KEY)
        if end < 0 and len(text) < LONGEST_KEY and not _breaks(text):
            self._rest = text
            return None, ""
        name = text[: max(0, end)]
        return ("" if _breaks(name) else name), text

    def _take_value(self, text: str, delta: AnswerDelta) -> str:
        found = text.find(PARAMETER_END)
        if found < 0:
            certain = len(text) - held_back(text, (f"\n{PARAMETER_END}", PARAMETER_END))
            delta.add_arguments(self._calls, self._value.take(text[:certain]))
            self._rest = text[certain:]
            return ""
        delta.add_arguments(self._calls, self._value.take(text[:found].removesuffix("\n")))
        delta.add_arguments(self._calls, self._value.end())
        self._state = "call"
        return text[found + len(PARAMETER_END) :]


class ParameterValue:
    """One value as JSON: text as it comes, what is read as JSON at its end."""

    def __init__(self, kind: TextKind | None) -> None:
        self._kind = kind
        self._kept: list[str] = []
        self._begun = False

    def take(self, text: str) -> str:
        """What became certain with the next piece. A line break at the beginning is none of it."""
        if not text:
            return ""
        opening = ""
        if not self._begun:
            self._begun, opening = True, '"'
            text = text.removeprefix("\n")
        if self._kind == "text":
            return opening + _quoted(text)[1:-1]
        self._kept.append(text)
        return ""

    def end(self) -> str:
        """The rest of the whole value."""
        if self._kind == "text":
            return '"' if self._begun else '""'
        text = "".join(self._kept)
        found = _PYTHON.get(text.strip(), text.strip())
        return found if _is_json(found) and (not self._kind or found == "null") else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _breaks(name: str) -> bool:
    return "<" in name or "\n" in name


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
