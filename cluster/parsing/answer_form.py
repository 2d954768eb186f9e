"""The form of one chat's answers: what tells reasoning and calls from content.

It is decided with the prompt, and kept with a resumable request, in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from engine.errors import Internal

CallFormName = Literal[
    "auto",
    "none",
    "hermes",
    "llama3",
    "mistral",
    "deepseek",
    "qwen3_coder",
    "response_template",
]
ReasoningFormName = Literal["auto", "none", "think", "mistral", "cohere", "seed", "kimi"]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """`calls` and `reasoning` are names of parsers, or empty for none.

    - `inside`: the prompt opens the reasoning.
    - `parallel`: an answer may have several calls.
    - `tools`: the tools, as the template has them, or what their parser needs of them.
    - `key`: random; the ids of the calls come from it.
    - `template`, `prefix`: for `calls` "response_template": the model's, and what of an answer
      stands in the prompt.
    """

    calls: str = ""
    reasoning: str = ""
    inside: bool = False
    parallel: bool = True
    key: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    template: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names of the tools."""
        return frozenset(str(tool["function"]["name"]) for tool in self.tools)

    @classmethod
    def read(cls, text: str) -> Self:
        """The form in `text`; Internal for a text that no router wrote."""
        try:
            found = json.loads(text)
            return cls(**(found | {"tools": tuple(found["tools"])}))
        except (ValueError, TypeError, KeyError):
            raise Internal("the form of the answer cannot be read") from None

    def text(self) -> str:
        """The form as JSON; empty where all text is content."""
        if not self.calls and not self.reasoning:
            return ""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)
