"""The prompts of one scheduler and the passes over them that were begun. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from engine.scheduling.prompt_order import PendingPrompt, PromptOrder, UnderWay
from engine.types.sequence import Sequence, Span
from engine.types.urgency import Urgency, raised

# Each that overtakes holds up those below it, and their memory.
MOST_PASSES = 3


@dataclass(frozen=True, slots=True)
class _QueuedPrompt:
    sequence: Sequence
    deadline_s: float
    arrival: int


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Where a prompt is among those of its lane that wait (1: the next), and for how long it waits.

    `wait_s` is a prediction, None before there was a prompt to learn from.
    """

    position: int
    wait_s: float | None


@dataclass(slots=True)
class _Begun:
    """A pass, and for how long it was computed."""

    spans: list[Span]
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(span.count for span in self.spans)


class PromptQueue:
    """Says whose turn it is by an order; a pass is known by the list of spans it was begun with.

    A prompt is one until its sequence has output.
    """

    def __init__(self, order: PromptOrder) -> None:
        self.order = order
        self._prompts: dict[str, _QueuedPrompt] = {}
        self._begun: list[_Begun] = []
        self._arrivals = 0
        self._changed = False

    @property
    def tokens_due(self) -> int:
        """Prompt tokens that wait or are being computed."""
        return sum(prompt.sequence.remaining for prompt in self._waiting())

    @property
    def batch_tokens_due(self) -> int:
        """Those of the batch lane among them."""
        sequences = (prompt.sequence for prompt in self._waiting())
        return sum(one.remaining for one in sequences if one.lane == "batch")

    @property
    def full(self) -> bool:
        """Whether no other pass may be begun."""
        return len(self._begun) >= MOST_PASSES

    @property
    def may_take(self) -> bool:
        """Whether `take` would look: with passes under way only when something has changed."""
        return not self.full and (self._changed or not self._begun)

    @property
    def owners(self) -> set[str]:
        """Everyone with a span in a pass."""
        return {span.sequence.owner for begun in self._begun for span in begun.spans}

    def add(self, sequence: Sequence, now: float) -> None:
        """A prompt has come; its budget begins."""
        self._arrivals += 1
        deadline_s = now + sequence.ttft_budget_s
        self._prompts[sequence.owner] = _QueuedPrompt(sequence, deadline_s, self._arrivals)
        self._raise_urgency(sequence)
        self._changed = True

    def drop(self, owner: str) -> None:
        """A request is gone, or its prompt is whole. Idempotent."""
        self._prompts.pop(owner, None)

    def take(
        self,
        now: float,
        admit: Callable[[str], int],
        without: Collection[str] = (),
        most_tokens: int | None = None,
    ) -> list[Span]:
        """The next pass, or with others under way one that should overtake them; empty for none.

        `admit` says how many tokens of a request can run now. It is not asked about `without`.
        """
        if not self.may_take:
            return []
        under_way = self._under_way()
        self._changed = False
        chunk = self.order.chunk(
            self._dues(without), now, lambda due: admit(due.owner), under_way, most_tokens
        )
        spans = []
        for due, count in chunk:
            sequence = self._prompts[due.owner].sequence
            spans.append(Span(sequence, sequence.computed, count))
        return spans

    def begin(self, spans: list[Span]) -> None:
        """A pass is under way, before the others."""
        if spans:
            self._begun.append(_Begun(spans))

    def advanced(self, spans: list[Span], seconds: float) -> None:
        """A pass was computed for so long, steps beside it included."""
        for begun in self._begun:
            if begun.spans is spans:
                begun.seconds += seconds

    def end(self, spans: list[Span], *, computed: bool) -> None:
        """A pass is over; nothing happens for spans that are none of these."""
        for begun in self._begun:
            if begun.spans is spans and computed:
                self.order.learn(begun.tokens, begun.seconds)
        self._begun = [begun for begun in self._begun if begun.spans is not spans]
        self._changed = True

    def places(self, now: float) -> dict[str, QueuePosition]:
        """The places of all prompts of which nothing is computed yet, as things are now."""
        found = {}
        token_s = 1 / self.order.tokens_per_s if self.order.tokens_per_s else None
        for lane in self.order.lanes(self._dues(()), now):
            position = 1
            for due, ahead in lane:
                if self._prompts[due.owner].sequence.cached_tokens is None:
                    wait_s = None if token_s is None else ahead * token_s
                    found[due.owner] = QueuePosition(position, wait_s)
                    position += 1
        return found

    def _raise_urgency(self, newcomer: Sequence) -> None:
        """Prompts that wait together share their urgency; the batch lane takes no part."""
        if newcomer.lane == "batch":
            return
        waiting = [one.sequence for one in self._waiting() if one.sequence.lane != "batch"]
        highest = max((one.urgency for one in waiting), default=Urgency.NONE)
        newcomer.urgency = raised(newcomer.urgency, highest, behind=True)
        for one in waiting:
            one.urgency = raised(one.urgency, newcomer.urgency)

    def _waiting(self) -> list[_QueuedPrompt]:
        return [p for p in self._prompts.values() if not p.sequence.output_tokens]

    def _under_way(self) -> UnderWay | None:
        if not self._begun:
            return None
        last = self._begun[-1]
        return UnderWay(self.owners, last.spans[0].sequence.lane, last.tokens)

    def _dues(self, without: Collection[str]) -> list[PendingPrompt]:
        behind = self._behind()
        dues = []
        for prompt in self._waiting():
            sequence = prompt.sequence
            if sequence.owner not in without:
                remaining = sequence.remaining - behind.get(sequence.owner, 0)
                dues.append(
                    PendingPrompt(
                        sequence.owner,
                        sequence.lane,
                        remaining,
                        prompt.deadline_s,
                        prompt.arrival,
                    )
                )
        return dues

    def _behind(self) -> dict[str, int]:
        """About how many tokens each has behind it in passes under way, never all of them."""
        tokens_per_s = self.order.tokens_per_s or 0.0
        return {
            span.sequence.owner: min(
                span.count - 1,
                int(span.count * begun.seconds * tokens_per_s / begun.tokens),
            )
            for begun in self._begun
            for span in begun.spans
        }
