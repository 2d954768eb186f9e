"""A model's own description of its answers: `response_template` of transformers' tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import UnsupportedModel

Event = Mapping[str, Any]


class ResponseTemplate:
    """One answer, read by the parser of transformers.

    `prefix` is what of the answer stands in the prompt already; `tools` are those of the template.
    """

    def __init__(
        self, template: Mapping[str, Any], prefix: str, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser = ResponseParser(dict(template), prefix=prefix, tools=[*map(dict, tools)])
        self.initial: list[Event] = self._parser.initial_events

    def push(self, text: str) -> list[Event]:
        """The regions that open, grow or close with this text; raises ValueError."""
        found: list[Event] = self._parser.feed(text)
        return found

    def end(self) -> list[Event]:
        """The regions that close with the text; raises ValueError."""
        _, events = self._parser.finalize()
        found: list[Event] = events
        return found


def answer_prefix(template: Mapping[str, Any], prompt: str) -> str:
    """What of an answer stands in the prompt already; raises UnsupportedModel."""
    from transformers.utils.chat_parsing.response_templates import load_response_template

    try:
        return str(load_response_template(dict(template)).truncate_past_last_anchor(prompt))
    except ValueError as error:
        raise UnsupportedModel(f"the model's response_template: {error}") from None


def markers_of(template: Mapping[str, Any]) -> str:
    """The text in which the special tokens that the template looks for stand."""
    return json.dumps(template, ensure_ascii=False).replace("\\", "")
