"""Reads a call that is a JSON object with a name and arguments, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable

from cluster.parsing.answer_delta import AnswerDelta
from cluster.parsing.json_value import JsonValue

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "type", "id", *_ARGUMENTS)
# Bound: characters of a key, or of a value that is not the arguments.
_LONGEST = 1024


class ArgumentsReader:
    """The arguments of a call: an object as it comes, a string in a string decoded at its end."""

    def __init__(self) -> None:
        self._value = JsonValue()
        self._kept: list[str] = []
        self._begun = self._streamed = False

    @property
    def ended(self) -> bool:
        """Whether the value is whole."""
        return self._value.ended

    def take(self, text: str, at: int) -> tuple[int, str]:
        """Take from `at` on; returns where the value or the text ends, and what became certain."""
        if not self._begun:
            self._begun, self._streamed = True, text[at] == "{"
        end = self._value.take(text, at)
        if self._streamed:
            return end, text[at:end]
        self._kept.append(text[at:end])
        return end, _decoded("".join(self._kept)) if self.ended else ""


def _decoded(text: str) -> str:
    """Arguments that are no object as OpenAI's API has them: a string holds JSON, null is empty."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if found is None:
        return "{}"
    return found if isinstance(found, str) else text


class CallObject:
    """One object, the call number `index` of its answer. Its name comes before its arguments.

    `known` says whether a name is a tool's. `failed` says that the object is no call. It
    turns true before anything is given, or never. Then `raw` has `opening` and the text so far.
    """

    def __init__(self, index: int, known: Callable[[str], bool] = bool, opening: str = "") -> None:
        self._index = index
        self._known = known
        self._state = "open"
        self._key = ""
        self._text = ""  # of a key, or of a value that is not streamed
        self._value: JsonValue | None = None
        self._arguments: ArgumentsReader | None = None
        self._had_arguments = False
        self._early = ""  # arguments before the name
        self._raw = [opening]
        self._name = ""
        self.begun = False
        self.failed = False
        self.ended = False

    @property
    def raw(self) -> str:
        """The text of an object that is no call, or not yet."""
        return "".join(self._raw)

    def take(self, text: str, at: int, delta: AnswerDelta) -> int:
        """Take from `at` on; returns where the object, its fault or the text ends."""
        begin = at
        while at < len(text) and not self.failed and not self.ended:
            if self._arguments is not None:
                at = self._take_arguments(self._arguments, text, at, delta)
            elif self._value is not None:
                at = self._take_value(self._value, text, at, delta)
            elif text[at] in _SPACE:
                at += 1
            else:
                at = self._structure(text[at], at, delta)
        if not self.begun:
            self._raw.append(text[begin:at])
        return at

    def _structure(self, mark: str, at: int, delta: AnswerDelta) -> int:
        """Take a character between values; returns where to go on."""
        if self._state == "open" and mark == "{":
            self._state = "key"
        elif self._state in ("key", "next") and mark == "}":
            self._end(delta)
        elif self._state == "next" and mark == ",":
            self._state = "key"
        elif self._state == "key" and mark == '"':
            self._value = JsonValue()
            return at
        elif self._state == "colon" and mark == ":":
            self._state = "value"
        elif self._state == "value":
            if self._key in _ARGUMENTS and not self._had_arguments:
                self._had_arguments, self._arguments = True, ArgumentsReader()
                if self._name:
                    self._begin(delta)
            else:
                self._value = JsonValue()
            return at
        else:
            self._fail()
            return at
        return at + 1

    def _take_value(self, value: JsonValue, text: str, at: int, delta: AnswerDelta) -> int:
        end = value.take(text[: at + _LONGEST - len(self._text)], at)
        self._text += text[at:end]
        if not value.ended:
            if len(self._text) == _LONGEST:
                self._fail()
            return end
        found, self._text, self._value = self._text, "", None
        if self._state == "key":
            self._key, self._state = found[1:-1], "colon"
            if self._key not in _KEYS:
                self._fail()
            return end
        self._state = "next"
        if self._key == "name":
            self._take_name(found, delta)
        return end

    def _take_name(self, text: str, delta: AnswerDelta) -> None:
        try:
            name = json.loads(text)
        except ValueError:
            name = None
        if not isinstance(name, str) or not self._known(name):
            self._fail()
            return
        self._name = self._name or name
        if self._early:
            self._begin(delta)

    def _take_arguments(
        self, arguments: ArgumentsReader, text: str, at: int, delta: AnswerDelta
    ) -> int:
        end, certain = arguments.take(text, at)
        if self.begun:
            delta.add_arguments(self._index, certain)
        else:
            self._early += certain
        if arguments.ended:
            self._arguments, self._state = None, "next"
        return end

    def _begin(self, delta: AnswerDelta) -> None:
        if not self.begun:
            self.begun = True
            delta.begin_call(self._index, self._name)
            delta.add_arguments(self._index, self._early)

    def _end(self, delta: AnswerDelta) -> None:
        if not self._name:
            self._fail()
            return
        if not self.begun:
            self._begin(delta)
            delta.add_arguments(self._index, "{}")
        self.ended = True

    def _fail(self) -> None:
        """No call, or a call with something broken behind its arguments, which ends it."""
        self.failed, self.ended = not self.begun, self.begun
