"""The tools of a chat, and the calls of tools in it.

Schemas and arguments are JSON texts, as the API carries them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ToolMode = Literal["auto", "none", "required"]
TOOL_MODES: tuple[ToolMode, ...] = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema, or empty for none.

    `strict`: the arguments of a call have the form of that schema.
    """

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the history of a chat; `arguments` is JSON as a model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the call number `index` of a choice. Its first piece has the id and the name."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a chat and their use. `named`: the tool that must be called, if any.

    `mode` is "required" where a tool is named. Without `parallel` an answer has one call at most.
    """

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = "auto"
    named: str = ""
    parallel: bool = True

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told about."""
        return () if self.mode == "none" else self.tools

    @property
    def forced(self) -> tuple[Tool, ...]:
        """The tools of which one must be called; empty where none must."""
        if self.mode != "required":
            return ()
        return tuple(tool for tool in self.tools if self.named in ("", tool.name))


NO_TOOLS = ToolUse()


def whole_calls(pieces: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls of a choice, from all their pieces."""
    whole: dict[int, ToolCall] = {}
    for piece in pieces:
        one = whole.get(piece.index, ToolCall("", "", ""))
        arguments = one.arguments + piece.arguments
        whole[piece.index] = ToolCall(one.id or piece.id, one.name or piece.name, arguments)
    return tuple(whole.values())
