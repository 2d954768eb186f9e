"""Answers of a model that brings its own description of them, `response_template`.

Content and reasoning come as they are written, a call once it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.parsing.answer_delta import AnswerDelta, Trimmed
from engine.text.response_template import Event, ResponseTemplate

_REASONING = ("reasoning_content", "reasoning", "thinking")
_FAULTS = (ValueError, LookupError, TypeError)


class ResponseTemplateParser:
    """The fields `content`, `reasoning_content` and `tool_calls` of the template.

    An answer that does not fit the template is content from its fault on.
    """

    def __init__(
        self, template: Mapping[str, Any], prefix: str, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        self._arguments = template, prefix, tools
        self._begin()
        self._given = AnswerDelta()
        self._raw: list[str] = []
        self._broken = False

    def push(self, text: str, delta: AnswerDelta) -> None:
        """Take the next piece of the text, and add what became certain."""
        if self._broken:
            delta.add_content(text)
            return
        self._raw.append(text)
        new = AnswerDelta()
        try:
            self._take(self._answer.push(text), new)
        except _FAULTS:
            new = self._slowly()
        self._give(new, delta)

    def end(self, delta: AnswerDelta) -> None:
        """Add the rest."""
        if self._broken:
            return
        new = AnswerDelta()
        try:
            self._take(self._answer.end(), new)
        except _FAULTS:
            new = self._slowly()
        self._give(new, delta)

    def _begin(self) -> None:
        template, prefix, tools = self._arguments
        try:
            self._answer = ResponseTemplate(template, prefix, tools)
        except _FAULTS:  # what stands in the prompt does not fit the template
            self._answer = ResponseTemplate(template, "", tools)
        self._texts = {name: Trimmed(leading=True) for name in ("content", *_REASONING)}
        self._call = ""  # the text of the call that is read
        self._calls = 0

    def _slowly(self) -> AnswerDelta:
        """The whole answer again up to its fault, without what was given before.

        What comes before a fault must not depend on the pieces in which the text came.
        """
        self._begin()
        whole, text = AnswerDelta(), "".join(self._raw)
        self._broken = True
        for at, character in enumerate(text):
            try:
                self._take(self._answer.push(character), whole)
            except _FAULTS:
                whole.add_content(self._call + text[at + 1 :])
                break
        else:
            whole.add_content(self._call)
        return whole.behind(self._given)

    def _give(self, new: AnswerDelta, delta: AnswerDelta) -> None:
        self._given.add(new)
        delta.add(new)

    def _take(self, events: Iterable[Event], delta: AnswerDelta) -> None:
        for event in events:
            name, kind = event["field"], event["type"]
            if name == "tool_calls":
                self._take_call(event, delta)
            elif kind == "region_chunk" and name in self._texts:
                text = self._texts[name].push(event["text"])
                if name == "content":
                    delta.add_content(text)
                else:
                    delta.add_reasoning(text)

    def _take_call(self, event: Event, delta: AnswerDelta) -> None:
        if event["type"] == "region_chunk":
            self._call += event["text"]
        elif event["type"] == "region_close":
            value = event["value"]
            for call in value if isinstance(value, list) else [value]:
                function = call["function"]
                arguments = function["arguments"]
                if not isinstance(arguments, str):
                    arguments = json.dumps(arguments, ensure_ascii=False)
                delta.begin_call(self._calls, str(function["name"]))
                delta.add_arguments(self._calls, arguments)
                self._calls += 1
            self._call = ""
