"""A finished answer, gathered from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem_client.events import FinishReason, SampledToken, Started, Summary, Tokens
from tandem_client.tools import ToolCall, whole_calls


@dataclass(frozen=True, slots=True)
class CompletedChoice:
    """One finished choice."""

    text: str
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    started: Started
    choices: tuple[CompletedChoice, ...]
    summary: Summary

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


def whole_choice(runs: Sequence[Tokens]) -> CompletedChoice:
    """A choice, from all its tokens."""
    return CompletedChoice(
        text="".join(run.text for run in runs),
        tokens=tuple(token for run in runs for token in run.tokens),
        finish_reason=runs[-1].finish_reason if runs else None,
        reasoning="".join(run.reasoning for run in runs),
        tool_calls=whole_calls([call for run in runs for call in run.tool_calls]),
    )
