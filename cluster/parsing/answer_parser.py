"""Reads the answers of a chat: the text of its Tokens becomes content, reasoning and calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from cluster.api import Event, Started, TextPart, Tokens, ToolCallDelta
from cluster.parsing.answer_delta import AnswerDelta, CallParser, CallPiece, TextPiece
from cluster.parsing.answer_form import AnswerForm
from cluster.parsing.deepseek import DeepSeekParser
from cluster.parsing.hermes import HermesParser
from cluster.parsing.llama3 import Llama3Parser
from cluster.parsing.mistral import MistralParser
from cluster.parsing.qwen3_coder import Qwen3CoderParser
from cluster.parsing.reasoning import REASONING_FORMS, ReasoningSplitter
from cluster.parsing.response_template import ResponseTemplateParser

_PARSERS: dict[str, Callable[[AnswerForm], CallParser]] = {
    "hermes": lambda form: HermesParser(),
    "llama3": lambda form: Llama3Parser(form.names),
    "mistral": lambda form: MistralParser(),
    "deepseek": lambda form: DeepSeekParser(),
    "qwen3_coder": lambda form: Qwen3CoderParser(form.tools),
    "response_template": lambda form: ResponseTemplateParser(
        form.template, form.prefix, form.tools
    ),
}
# Mistral's templates take ids of nine letters and digits alone.
_ID_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9


class _ChoiceParser:
    """The parts of one choice."""

    def __init__(self, form: AnswerForm) -> None:
        markers = REASONING_FORMS.get(form.reasoning)
        self._reasoning = markers and ReasoningSplitter(*markers, inside=form.inside)
        self._calls = _PARSERS[form.calls](form) if form.calls else None

    def push(self, text: str) -> AnswerDelta:
        """What became certain with the next piece of the text."""
        delta = AnswerDelta()
        if self._reasoning:
            text = self._reasoning.push(text, delta)
        self._answer(text, delta)
        return delta

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest."""
        if self._reasoning:
            self._answer(self._reasoning.end(delta), delta)
        if self._calls is not None:
            self._calls.end(delta)

    def _answer(self, text: str, delta: AnswerDelta) -> None:
        if self._calls is None:
            delta.add_content(text)
        elif text:
            self._calls.push(text, delta)


class AnswerParser:
    """The parts of all choices of a form."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._choices: dict[int, _ChoiceParser] = {}
        self._called: set[int] = set()

    def take(self, tokens: Tokens) -> Tokens:
        """The same tokens with the parts that their text completes."""
        choice = tokens.choice
        parser = self._choices.get(choice)
        if parser is None:
            parser = self._choices[choice] = _ChoiceParser(self._form)
        delta = parser.push(tokens.text)
        if tokens.finish_reason is not None:
            parser.end(delta)
        calls = tuple(self._call(choice, piece) for piece in delta.calls if self._keeps(piece))
        if calls:
            self._called.add(choice)
        finish = tokens.finish_reason
        return replace(
            tokens,
            text=delta.content,
            reasoning=delta.reasoning,
            tool_calls=calls,
            finish_reason="tool_calls" if finish == "stop" and choice in self._called else finish,
            parts=() if _usual(delta) else tuple(self._parts(choice, delta)),
        )

    def _parts(self, choice: int, delta: AnswerDelta) -> Iterator[TextPart | ToolCallDelta]:
        for piece in delta.pieces:
            if isinstance(piece, TextPiece):
                yield TextPart(piece.text, piece.reasoning)
            elif self._keeps(piece):
                yield self._call(choice, piece)

    def _keeps(self, piece: CallPiece) -> bool:
        return self._form.parallel or piece.index == 0

    def _call(self, choice: int, piece: CallPiece) -> ToolCallDelta:
        call_id = self._id(choice, piece.index) if piece.begins else ""
        return ToolCallDelta(piece.index, call_id, piece.name, piece.arguments)

    def _id(self, choice: int, index: int) -> str:
        name = f"{self._form.key}.{choice}.{index}".encode()
        number = int.from_bytes(hashlib.blake2s(name).digest())
        found = ""
        for _ in range(_ID_LENGTH):
            number, digit = divmod(number, len(_ID_CHARACTERS))
            found += _ID_CHARACTERS[digit]
        return found


def _usual(delta: AnswerDelta) -> bool:
    """Whether the pieces come in the order of the fields of Tokens: reasoning, text, calls."""
    pieces = delta.pieces
    ranks = [2 if isinstance(piece, CallPiece) else not piece.reasoning for piece in pieces]
    return len(pieces) < 2 or ranks == sorted(ranks)


class AnswerReader:
    """Passes on the events of one request, its Tokens with their parts.

    The form comes with Started. Tokens that come in other pieces, as after a failover, give the
    same parts.
    """

    def __init__(self, form: str = "") -> None:
        self._parser = AnswerParser(AnswerForm.read(form)) if form else None

    def tokens(self, tokens: Tokens) -> Tokens:
        """The next tokens with their parts."""
        return tokens if self._parser is None else self._parser.take(tokens)

    def take(self, event: Event) -> Event:
        """The event as a client gets it."""
        if isinstance(event, Tokens):
            return self.tokens(event)
        if isinstance(event, Started) and event.form and self._parser is None:
            self._parser = AnswerParser(AnswerForm.read(event.form))
        return event
