"""Reads an answer in given pieces, and shows what a client has after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster.api import Tokens, ToolCallDelta
from cluster.parsing.answer_form import AnswerForm
from cluster.parsing.answer_parser import AnswerParser

TEXTS = {"city": "text", "note": "nullable"}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "texts": TEXTS}} for name in ("get", "put")
)
QWEN = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>)", "content": "text"},
    },
}


class Had(NamedTuple):
    """What a client has of one choice; a call is its name and its arguments.

    `ahead` characters of the content come before the first call; -1: there is none.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str | None = None
    ahead: int = -1


def form_of(calls: str, *, reasoning: str = "", inside: bool = False) -> AnswerForm:
    template = QWEN if calls == "response_template" else {}
    return AnswerForm(
        calls=calls, reasoning=reasoning, inside=inside, key="k", tools=TOOLS, template=template
    )


def read(form: AnswerForm, pieces: Sequence[str]) -> list[Had]:
    """What a client has after each piece; the last piece ends the choice."""
    parser, had, found = AnswerParser(form), Had(), []
    calls: list[tuple[str, str]] = []
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        tokens = parser.take(Tokens(0, index, (index,), piece, "stop" if last else None))
        for call in tokens.tool_calls:
            if call.id:
                assert call.index == len(calls) and call.name
                calls.append((call.name, ""))
            name, arguments = calls[call.index]
            calls[call.index] = (name, arguments + call.arguments)
        content, reasoning = had.content + tokens.text, had.reasoning + tokens.reasoning
        ahead = had.ahead
        if tokens.tool_calls and not had.calls:
            ahead = len(had.content) + _ahead(tokens)
        had = Had(content, reasoning, tuple(calls), tokens.finish_reason, ahead)
        found.append(had)
    return found


def _ahead(tokens: Tokens) -> int:
    """The characters of the content before the first piece of a call."""
    ahead = 0
    for part in tokens.in_order():
        if isinstance(part, ToolCallDelta):
            break
        ahead += 0 if part.reasoning else len(part.text)
    return ahead


def check_splits(form: AnswerForm, text: str) -> Had:
    """What the text gives, the same at each split point and piece by piece."""
    single = read(form, list(text))
    for cut in range(1, len(text)):
        first, whole = read(form, [text[:cut], text[cut:]])
        assert first == single[cut - 1], f"after {text[:cut]!r}"
        assert whole == single[-1], f"split after {text[:cut]!r}"
    assert read(form, [text]) == single[-1:]
    return single[-1]
