"""Reads the turns of a conversation from Anthropic's messages and their blocks.

Each result of a tool becomes a turn of its own. Turns of one role that follow each other are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.api import ChatMessage, Role, ToolCall
from cluster.api.chats.tool_json import json_text
from cluster.api.chats.tools import check_call_id, check_calls, tool_call
from cluster.api.chats.turns import OpenCalls
from cluster.api.limits import MAX_CONTENT_PARTS, check_conversation, check_length
from cluster.gateway.messages.fields import choice_of, flag_of, list_of, object_of, string_of
from engine.errors import InvalidRequest, shown

# The kinds of blocks that a turn may have, by its role.
_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
_TEXT_REFUSED: dict[str, tuple[object, ...]] = {"citations": ([],)}


@dataclass(slots=True)
class _Turn:
    """A turn, as far as its blocks have come."""

    role: Role
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    call_id: str = ""

    def message(self) -> ChatMessage:
        """The whole turn. The text of an assistant was cut at its calls alone."""
        content = ("" if self.role == "assistant" else "\n").join(self.texts)
        reasoning = "".join(self.reasoning)
        return ChatMessage(self.role, content, tuple(self.calls), self.call_id, reasoning)


def read_turns(value: object) -> tuple[ChatMessage, ...]:
    """`messages`: turns whose content is a string or a list of blocks; raises InvalidRequest."""
    entries = list_of(value, "messages")
    check_conversation(entries, _blocks, "messages", "messages", "blocks")
    reader = _TurnReader()
    for index, entry in enumerate(entries):
        reader.take(entry, f"messages[{index}]")
    return tuple(turn.message() for turn in reader.turns)


def read_system(value: object) -> str:
    """`system`: a string or a list of text blocks."""
    return _texts(value, "system")


class _TurnReader:
    """The turns so far."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._calls = OpenCalls()

    def take(self, entry: object, name: str) -> None:
        """Take the next message."""
        found = object_of(entry, name, ("role", "content"))
        role = choice_of(found.get("role"), _BLOCKS, f"{name}.role")
        content, place = found.get("content"), f"{name}.content"
        if isinstance(content, list) and content:
            for index, block in enumerate(content):
                self._block(block, role, f"{place}[{index}]")
        else:
            text = "" if content == [] else string_of(content, place)
            self._turn(role).texts.append(text)

    def _turn(self, role: str) -> _Turn:
        """The last turn, or a new one where that is of another role."""
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role))  # type: ignore[arg-type]
        return self.turns[-1]

    def _block(self, block: object, role: str, name: str) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind is not None and kind not in _BLOCKS[role]:
            message = (
                f"{name}.type: {shown(kind)} is not supported in a turn of {role}, "
                f"only {', '.join(_BLOCKS[role])}"
            )
            raise InvalidRequest(message, field=f"{name}.type")
        if kind == "tool_result":
            self._result(block, name)
        elif kind == "tool_use":
            self._call(block, name)
        elif kind == "thinking":
            found = object_of(block, name, ("type", "thinking"), ("signature", "cache_control"))
            text = string_of(found.get("thinking"), f"{name}.thinking")
            self._turn(role).reasoning.append(text)
        else:
            self._turn(role).texts.append(_text(block, name))

    def _call(self, block: object, name: str) -> None:
        ignored = ("cache_control", "caller", "toolset_name")
        found = object_of(block, name, ("type", "id", "name", "input"), ignored)
        given, place = found.get("input"), f"{name}.input"
        if not isinstance(given, dict):
            raise InvalidRequest(f"{place} must be an object, not {shown(given)}", field=place)
        call = tool_call(found.get("id"), found.get("name"), json_text(given, place), name)
        self._calls.begin(call.id, f"{name}.id")
        turn = self._turn("assistant")
        turn.calls.append(call)
        check_calls(turn.calls, name)

    def _result(self, block: object, name: str) -> None:
        ignored = ("cache_control", "toolset_name")
        known = ("type", "tool_use_id", "content", "is_error")
        found = object_of(block, name, known, ignored)
        flag_of(found.get("is_error", False), f"{name}.is_error")
        call_id = check_call_id(found.get("tool_use_id"), f"{name}.tool_use_id")
        self._calls.answer(call_id, f"{name}.tool_use_id")
        text = _texts(found.get("content", ""), f"{name}.content")
        self.turns.append(_Turn("tool", [text], call_id=call_id))


def _texts(value: object, name: str) -> str:
    """A string, or text blocks as lines."""
    if isinstance(value, str):
        return string_of(value, name)
    if not isinstance(value, list):
        message = f"{name} must be a string or a list of text blocks, not {shown(value)}"
        raise InvalidRequest(message, field=name)
    check_length(value, MAX_CONTENT_PARTS, name, "blocks")
    return "\n".join(_text(block, f"{name}[{index}]") for index, block in enumerate(value))


def _text(block: object, name: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else "text"
    if kind != "text":
        message = f"{name}.type: {shown(kind)} is not supported here, only text"
        raise InvalidRequest(message, field=f"{name}.type")
    found = object_of(block, name, ("type", "text"), refused=_TEXT_REFUSED)
    return string_of(found.get("text"), f"{name}.text")


def _blocks(entry: object) -> int:
    """The number of blocks of a message, with the blocks in results of tools."""
    content = entry.get("content") if isinstance(entry, dict) else None
    blocks: Sequence[object] = content if isinstance(content, list) else ()
    inner = (block.get("content") for block in blocks if isinstance(block, dict))
    return len(blocks) + sum(len(one) for one in inner if isinstance(one, list))
