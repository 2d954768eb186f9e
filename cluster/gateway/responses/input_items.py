"""Reads `input` of a response: its items become the turns of a chat.

Reasoning, a message and calls that follow each other are one turn of the assistant, as a model
gave them. Everything here raises InvalidRequest with `field` as OpenAI's `param` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.api import ChatMessage
from cluster.api.chats.tools import ToolCall, check_call_id, check_calls, tool_call
from cluster.api.chats.turns import OpenCalls
from cluster.api.limits import check_conversation
from cluster.api.validation import chat_message, check_text
from cluster.gateway.openai_fields import unknown_field
from engine.errors import InvalidRequest, shown

_IDLE = frozenset({"type", "id", "status", "phase"})
_FIELDS: Mapping[str, frozenset[str]] = {
    "message": _IDLE | {"role", "content"},
    "function_call": _IDLE | {"call_id", "name", "arguments"},
    "function_call_output": _IDLE | {"call_id", "output"},
    "reasoning": _IDLE | {"content", "summary", "encrypted_content"},
}
# The types of the parts of a text.
_TEXTS = ("input_text", "output_text")
_REASONINGS = ("reasoning_text", "summary_text")


def read_input(value: object) -> tuple[ChatMessage, ...]:
    """`input`: a text of the user, or a list of items."""
    if isinstance(value, str):
        if not value:
            raise InvalidRequest("input must not be empty", field="input")
        return (ChatMessage("user", check_text(value, "input")),)
    if not isinstance(value, list):
        message = f"input must be a string or a list, not {shown(value)}"
        raise InvalidRequest(message, field="input")
    check_conversation(value, _parts, "input", "items", "parts")
    turns = _Turns()
    for index, entry in enumerate(value):
        turns.add(entry, f"input[{index}]")
    return turns.whole()


@dataclass(slots=True)
class _AssistantTurn:
    """A turn of the assistant, as far as its items have come; `content` None: no message yet."""

    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)


class _Turns:
    """Gathers items into turns."""

    def __init__(self) -> None:
        self._found: list[ChatMessage] = []
        self._calls = OpenCalls()
        self._turn: _AssistantTurn | None = None
        self._readers: Mapping[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._result,
            "reasoning": self._reasoning,
        }

    def add(self, entry: object, name: str) -> None:
        """Take the next item."""
        if not isinstance(entry, dict):
            raise InvalidRequest(f"{name} must be an object, not {shown(entry)}", field=name)
        kind = entry.get("type", "message" if "role" in entry else None)
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            known = ", ".join(self._readers)
            message = f"{name}.type must be one of {known}, not {shown(kind)}"
            raise InvalidRequest(message, field=f"{name}.type")
        for key, one in entry.items():
            if one is not None and key not in _FIELDS[str(kind)]:
                raise unknown_field(key, f"{name}.", _FIELDS[str(kind)])
        reader(entry, name)

    def whole(self) -> tuple[ChatMessage, ...]:
        """All turns."""
        self._end()
        return tuple(self._found)

    def _message(self, entry: Mapping[str, Any], name: str) -> None:
        role = entry.get("role")
        content = _text(entry.get("content"), f"{name}.content", _TEXTS)
        message = chat_message("system" if role == "developer" else role, content, name)
        if message.role == "tool":
            said = f"{name}.role must be one of user, assistant, system, developer, not 'tool'"
            raise InvalidRequest(said, field=f"{name}.role")
        if message.role == "assistant":
            self._assistant(begins=True).content = content
        else:
            self._end()
            self._found.append(message)

    def _call(self, entry: Mapping[str, Any], name: str) -> None:
        call_id = check_call_id(entry.get("call_id"), f"{name}.call_id")
        call = tool_call(call_id, entry.get("name"), entry.get("arguments"), name)
        self._calls.begin(call_id, f"{name}.call_id")
        turn = self._assistant(begins=False)
        turn.calls.append(call)
        check_calls(turn.calls, name)

    def _result(self, entry: Mapping[str, Any], name: str) -> None:
        call_id = check_call_id(entry.get("call_id"), f"{name}.call_id")
        self._end()
        self._calls.answer(call_id, f"{name}.call_id")
        output = _text(entry.get("output"), f"{name}.output", _TEXTS)
        self._found.append(chat_message("tool", output, name, tool_call_id=call_id))

    def _reasoning(self, entry: Mapping[str, Any], name: str) -> None:
        given = next((key for key in ("content", "summary") if entry.get(key)), None)
        turn = self._assistant(begins=True)
        if given is not None:
            turn.reasoning.append(_text(entry[given], f"{name}.{given}", _REASONINGS))

    def _assistant(self, *, begins: bool) -> _AssistantTurn:
        """The turn of the assistant; a new one for an item that `begins` what follows."""
        turn = self._turn
        if turn is not None and begins and (turn.content is not None or turn.calls):
            self._end()
        self._turn = self._turn or _AssistantTurn()
        return self._turn

    def _end(self) -> None:
        """End the turn of the assistant. Reasoning that nobody can read is no turn."""
        turn, self._turn = self._turn, None
        if turn is None or not (turn.reasoning or turn.content is not None or turn.calls):
            return
        reasoning = "\n".join(turn.reasoning)
        self._found.append(
            ChatMessage("assistant", turn.content or "", tuple(turn.calls), reasoning=reasoning)
        )


def _text(value: object, name: str, kinds: tuple[str, ...]) -> str:
    """A text, or the texts of a list of parts of these `kinds`."""
    if isinstance(value, str):
        return check_text(value, name)
    if not isinstance(value, list):
        message = f"{name} must be a string or a list of text parts, not {shown(value)}"
        raise InvalidRequest(message, field=name)
    parts = (_part(part, f"{name}[{index}]", kinds) for index, part in enumerate(value))
    return check_text("\n".join(parts), name)


def _part(part: object, name: str, kinds: tuple[str, ...]) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{name} must be a text part, not {shown(part)}", field=name)
    kind = part.get("type")
    if kind not in kinds:
        message = f"{name}.type: only {' and '.join(kinds)} are supported, not {shown(kind)}"
        raise InvalidRequest(message, field=f"{name}.type")
    text = part.get("text")
    if not isinstance(text, str):
        message = f"{name}.text must be a string, not {shown(text)}"
        raise InvalidRequest(message, field=f"{name}.text")
    return text


def _parts(entry: object) -> int:
    """The number of the parts of an item."""
    if not isinstance(entry, dict):
        return 0
    lists = (entry.get(key) for key in ("content", "output", "summary"))
    return sum(len(one) for one in lists if isinstance(one, list))
