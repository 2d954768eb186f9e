"""The passes over prompts that were begun and not ended. Pure; both schedulers keep one book."""

from __future__ import annotations

from dataclasses import dataclass

from engine.prompt_order import UnderWay
from engine.sequence import Span

# Each that overtakes holds up those below it, and their memory.
MOST_PASSES = 3


@dataclass(slots=True)
class _Begun:
    spans: list[Span]
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(span.count for span in self.spans)


class BegunPasses:
    """Passes by the list of spans that each was begun with; the last one is computed first."""

    def __init__(self) -> None:
        self._begun: list[_Begun] = []

    @property
    def full(self) -> bool:
        """Whether no other pass may be begun."""
        return len(self._begun) >= MOST_PASSES

    @property
    def owners(self) -> set[str]:
        """Everyone with a span in a pass."""
        return {span.sequence.owner for begun in self._begun for span in begun.spans}

    def under_way(self) -> UnderWay | None:
        """What a prompt would have to overtake; None where nothing is under way."""
        if not self._begun:
            return None
        last = self._begun[-1]
        return UnderWay(self.owners, last.spans[0].sequence.lane, last.tokens)

    def begin(self, spans: list[Span]) -> None:
        """A pass is under way, before the others."""
        if spans:
            self._begun.append(_Begun(spans))

    def advanced(self, spans: list[Span], seconds: float) -> None:
        """A pass was computed for so long, steps beside it included."""
        for begun in self._begun:
            if begun.spans is spans:
                begun.seconds += seconds

    def end(self, spans: list[Span]) -> tuple[int, float] | None:
        """A pass is over: its tokens and seconds; None for spans that were none of these."""
        for begun in self._begun:
            if begun.spans is spans:
                self._begun = [other for other in self._begun if other is not begun]
                return begun.tokens, begun.seconds
        return None

    def computed(self, tokens_per_s: float | None) -> dict[str, int]:
        """About how many tokens each owner has behind it in these passes, never all of them."""
        return {
            span.sequence.owner: _part(span, begun, tokens_per_s or 0.0)
            for begun in self._begun
            for span in begun.spans
        }


def _part(span: Span, begun: _Begun, tokens_per_s: float) -> int:
    return min(span.count - 1, int(span.count * begun.seconds * tokens_per_s / begun.tokens))
