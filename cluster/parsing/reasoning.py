"""Reasoning before an answer, between two markers."""

from __future__ import annotations

from cluster.parsing.answer_delta import AnswerDelta, Trimmed, held_back

# By the name of the form: the markers before and behind the reasoning.
REASONING_FORMS: dict[str, tuple[str, str]] = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "seed": ("<seed:think>", "</seed:think>"),
    "kimi": ("◁think▷", "◁/think▷"),
}
# Bound: characters of white space before reasoning.
_SPACE = 64


class ReasoningSplitter:
    """Splits reasoning from what follows it. `inside`: the prompt has the marker that opens it."""

    def __init__(self, opening: str, closing: str, *, inside: bool) -> None:
        self._opening = opening
        self._closing = closing
        self._reasoning = Trimmed(leading=True)
        self._state = "reasoning" if inside else "before"
        self._rest = ""

    def push(self, text: str, delta: AnswerDelta) -> str:
        """Take the next piece; adds the certain reasoning, and returns what follows it."""
        if self._state == "answer":
            return text
        text, self._rest = self._rest + text, ""
        if self._state == "space":
            return self._space(text)
        if self._state == "before":
            found = text.lstrip()
            near = len(text) - len(found) <= _SPACE
            if not (near and found.startswith(self._opening)):
                if near and self._opening.startswith(found):
                    self._rest = text
                    return ""
                self._state = "answer"
                return text
            self._state, text = "reasoning", found[len(self._opening) :]
        return self._within(text, delta)

    def end(self, delta: AnswerDelta) -> str:
        """Add the rest of reasoning that did not end; returns text that is none."""
        if self._state == "reasoning":
            delta.add_reasoning(self._reasoning.push(self._rest))
        return self._rest if self._state == "before" else ""

    def _within(self, text: str, delta: AnswerDelta) -> str:
        at = text.find(self._closing)
        certain = at if at >= 0 else len(text) - held_back(text, (self._closing,))
        delta.add_reasoning(self._reasoning.push(text[:certain]))
        if at < 0:
            self._rest = text[certain:]
            return ""
        self._state = "space"
        return self._space(text[at + len(self._closing) :])

    def _space(self, text: str) -> str:
        """Drop the white space between reasoning and answer."""
        found = text.lstrip()
        if found:
            self._state = "answer"
        return found
