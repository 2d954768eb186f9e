"""The parts of an answer that became certain, and the interface of what finds calls in a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(slots=True)
class CallPiece:
    """A piece of the call number `index`; `begins` with its first piece, which has the name."""

    index: int
    name: str = ""
    arguments: str = ""
    begins: bool = False


@dataclass(slots=True)
class TextPiece:
    """A piece of the content, or of the `reasoning`."""

    text: str
    reasoning: bool = False


@dataclass(slots=True)
class AnswerDelta:
    """The parts that became certain, in the order of the answer."""

    pieces: list[TextPiece | CallPiece] = field(default_factory=list)

    @property
    def content(self) -> str:
        """The content of all pieces."""
        return self._text(reasoning=False)

    @property
    def reasoning(self) -> str:
        """The reasoning of all pieces."""
        return self._text(reasoning=True)

    @property
    def calls(self) -> list[CallPiece]:
        """The pieces of calls."""
        return [piece for piece in self.pieces if isinstance(piece, CallPiece)]

    def add_content(self, text: str) -> None:
        """Add content."""
        self._add_text(text, reasoning=False)

    def add_reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._add_text(text, reasoning=True)

    def begin_call(self, index: int, name: str) -> None:
        """Add a call."""
        self.pieces.append(CallPiece(index, name, begins=True))

    def add_arguments(self, index: int, text: str) -> None:
        """Add a piece of the arguments of a call."""
        if not text:
            return
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, CallPiece) and last.index == index:
            last.arguments += text
        else:
            self.pieces.append(CallPiece(index, arguments=text))

    def add(self, more: AnswerDelta) -> None:
        """Add what became certain after this."""
        for piece in more.pieces:
            if isinstance(piece, TextPiece):
                self._add_text(piece.text, piece.reasoning)
            else:
                self.pieces.append(replace(piece))

    def behind(self, given: AnswerDelta) -> AnswerDelta:
        """The pieces that were not `given` yet; `given` is the beginning of this delta."""
        left = {False: len(given.content), True: len(given.reasoning)}
        calls, rest = len(given.calls), AnswerDelta()
        for piece in self.pieces:
            if isinstance(piece, TextPiece):
                rest._add_text(piece.text[left[piece.reasoning] :], piece.reasoning)
                left[piece.reasoning] = max(0, left[piece.reasoning] - len(piece.text))
            elif calls:
                calls -= 1
            else:
                rest.pieces.append(piece)
        return rest

    def _text(self, reasoning: bool) -> str:
        pieces = (piece for piece in self.pieces if isinstance(piece, TextPiece))
        return "".join(piece.text for piece in pieces if piece.reasoning is reasoning)

    def _add_text(self, text: str, reasoning: bool) -> None:
        if not text:
            return
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, TextPiece) and last.reasoning is reasoning:
            last.text += text
        else:
            self.pieces.append(TextPiece(text, reasoning))


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
