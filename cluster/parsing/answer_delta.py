"""The parts of an answer that became certain, and the interface of what finds calls in a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class CallPiece:
    """A piece of the call number `index`; `begins` with its first piece, which has the name."""

    index: int
    name: str = ""
    arguments: str = ""
    begins: bool = False


@dataclass(slots=True)
class AnswerDelta:
    """The parts that became certain: reasoning, content, and at most one piece of each call.

    `calls_at` characters of the content stand before the first piece of a call.
    """

    reasoning: str = ""
    content: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    calls_at: int = 0

    def begin_call(self, index: int, name: str) -> None:
        """Add a call."""
        self._mark()
        self.calls.append(CallPiece(index, name, begins=True))

    def add_arguments(self, index: int, text: str) -> None:
        """Add a piece of the arguments of a call."""
        if not text:
            return
        self._mark()
        if not self.calls or self.calls[-1].index != index:
            self.calls.append(CallPiece(index))
        self.calls[-1].arguments += text

    def _mark(self) -> None:
        if not self.calls:
            self.calls_at = len(self.content)


class CallParser(Protocol):
    """Finds the calls in the text of one choice."""

    def push(self, text: str, delta: AnswerDelta) -> None:
        """Take the next piece of the text, and add what became certain."""
        ...

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest. No text comes any more."""
        ...


def held_back(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    longest = min(len(text), max(map(len, markers)) - 1)
    for count in range(longest, 0, -1):
        if any(marker.startswith(text[-count:]) for marker in markers):
            return count
    return 0


def first_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Where the first marker stands in `text`, and which one."""
    found = [(text.find(marker), marker) for marker in markers]
    return min(((at, marker) for at, marker in found if at >= 0), default=None)


class Trimmed:
    """Text without the white space at its two ends; the space within comes with what follows it."""

    # Bound: white space that waits for what follows it.
    _MOST = 64

    def __init__(self, *, leading: bool) -> None:
        self._begun = not leading
        self._space = ""

    def push(self, text: str) -> str:
        """What became certain with the next piece of the text."""
        if not self._begun:
            text = text.lstrip()
            if not text:
                return ""
            self._begun = True
        text = self._space + text
        kept = text.rstrip()
        kept += text[len(kept) : max(0, len(text) - self._MOST)]
        self._space = text[len(kept) :]
        return kept

    def rest(self) -> str:
        """The white space at the end."""
        rest, self._space = self._space, ""
        return rest
