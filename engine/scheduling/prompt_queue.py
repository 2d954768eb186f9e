"""The prompts of one scheduler and the passes over them that were begun. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from engine.scheduling.prompt_order import PendingPrompt, PromptOrder, UnderWay
from engine.types.sequence import Sequence, Span
from engine.types.urgency import Urgency, raised

# Bound: a pass that overtakes holds up the passes below it, and their memory.
MOST_PASSES = 3


@dataclass(frozen=True, slots=True)
class _QueuedPrompt:
    sequence: Sequence
    deadline_s: float
    arrival: int


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A prompt's `position` among the waiting prompts of its lane; 1 is the next.

    `wait_s` predicts the seconds until it is computed. It is None before the first pass.
    """

    position: int
    wait_s: float | None


@dataclass(slots=True)
class _Begun:
    """A pass that was begun, its spans of prompts, and the seconds for which it was computed.

    `alone_s` are those of its prompts alone, without the steps beside them.
    """

    spans: list[Span]
    prompts: list[Span]
    seconds: float = 0.0
    alone_s: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(span.count for span in self.prompts)


class PromptQueue:
    """The prompts that wait and the passes over them, in the order of a PromptOrder.

    A pass is known by the list of spans that it was begun with. A sequence counts as a prompt until
    it has output.
    """

    def __init__(self, order: PromptOrder) -> None:
        self.order = order
        self._prompts: dict[str, _QueuedPrompt] = {}
        self._begun: list[_Begun] = []
        self._arrivals = 0
        self._changed = False

    @property
    def tokens_due(self) -> int:
        """The prompt tokens that wait or are being computed."""
        return sum(prompt.sequence.remaining for prompt in self._waiting())

    @property
    def batch_tokens_due(self) -> int:
        """The part of `tokens_due` that belongs to the batch lane."""
        sequences = (prompt.sequence for prompt in self._waiting())
        return sum(one.remaining for one in sequences if one.lane == "batch")

    @property
    def full(self) -> bool:
        """Whether no further pass of prompts may be begun."""
        return len(self._begun) >= MOST_PASSES

    @property
    def may_take(self) -> bool:
        """Whether `take` searches for a pass; beside other passes only after a change."""
        return not self.full and (self._changed or not self._begun)

    @property
    def owners(self) -> set[str]:
        """The owners with a prompt's span in a pass."""
        return {span.sequence.owner for begun in self._begun for span in begun.prompts}

    def add(self, sequence: Sequence, now: float) -> None:
        """Add a prompt. Its budget begins now."""
        self._arrivals += 1
        deadline_s = now + sequence.ttft_budget_s
        self._prompts[sequence.owner] = _QueuedPrompt(sequence, deadline_s, self._arrivals)
        self._raise_urgency(sequence)
        self._changed = True

    def drop(self, owner: str) -> None:
        """Drop a prompt that is computed, or whose request has gone. Idempotent."""
        self._prompts.pop(owner, None)

    def take(
        self,
        now: float,
        admit: Callable[[str], int],
        without: Collection[str] = (),
        most_tokens: int | None = None,
    ) -> list[Span]:
        """The spans of the next pass; beside others, of a pass that should overtake them.

        The list is empty where there is no such pass. `admit` gives the tokens of a request that
        can run now. Owners in `without` take no part.
        """
        if not self.may_take:
            return []
        under_way = self._under_way()
        self._changed = False
        chunk = self.order.chunk(
            self._pending(without), now, lambda prompt: admit(prompt.owner), under_way, most_tokens
        )
        spans = []
        for prompt, count in chunk:
            sequence = self._prompts[prompt.owner].sequence
            spans.append(Span(sequence, sequence.computed, count))
        return spans

    def begin(self, spans: list[Span], riders: int = 0) -> None:
        """Begin a pass. The passes before it wait for it.

        The last `riders` of the spans are next tokens of streams, and no prompts.
        """
        if spans:
            self._begun.append(_Begun(spans, spans[: len(spans) - riders]))

    def advanced(self, spans: list[Span], seconds: float, alone_s: float | None = None) -> None:
        """Note that a pass was computed for `seconds`, with the steps beside it.

        Of them its prompts alone took `alone_s`, which their requests share; None: all.
        """
        for begun in self._begun:
            if begun.spans is spans:
                begun.seconds += seconds
                begun.alone_s += seconds if alone_s is None else alone_s

    def end(self, spans: list[Span], *, computed: bool) -> None:
        """End a pass. Spans that are not a pass here are ignored."""
        for begun in self._begun:
            if begun.spans is not spans:
                continue
            # Also a pass that computed nothing took its time.
            for span in begun.prompts:
                span.sequence.pass_s += begun.alone_s * span.count / begun.tokens
            if computed:
                self.order.learn(begun.tokens, begun.seconds)
                for span in spans:
                    span.sequence.passes += span.count / begun.tokens
        self._begun = [begun for begun in self._begun if begun.spans is not spans]
        self._changed = True

    def positions(self, now: float) -> dict[str, QueuePosition]:
        """The queue positions of the prompts that were not started yet, by owner."""
        found = {}
        for lane in self.order.lanes(self._pending(()), now):
            position = 1
            for prompt, ahead in lane:
                if self._prompts[prompt.owner].sequence.cached_tokens is None:
                    found[prompt.owner] = QueuePosition(position, self.order.wait_s(ahead))
                    position += 1
        return found

    def _raise_urgency(self, newcomer: Sequence) -> None:
        """Give the newcomer's urgency to the waiting prompts, except those of the batch lane."""
        if newcomer.lane == "batch":
            return
        waiting = [one.sequence for one in self._waiting() if one.sequence.lane != "batch"]
        highest = max((one.urgency for one in waiting), default=Urgency.NONE)
        newcomer.urgency = raised(newcomer.urgency, highest, behind=True)
        for one in waiting:
            one.urgency = raised(one.urgency, newcomer.urgency)

    def _waiting(self) -> list[_QueuedPrompt]:
        """The prompts without output; the others are forgotten, as each step asks for these."""
        begun = [owner for owner, one in self._prompts.items() if one.sequence.output_tokens]
        for owner in begun:
            del self._prompts[owner]
        return [*self._prompts.values()]

    def _under_way(self) -> UnderWay | None:
        if not self._begun:
            return None
        last = self._begun[-1]
        return UnderWay(self.owners, last.prompts[0].sequence.lane, last.tokens)

    def _pending(self, without: Collection[str]) -> list[PendingPrompt]:
        computed = self._computed_under_way()
        pending = []
        for prompt in self._waiting():
            sequence = prompt.sequence
            if sequence.owner not in without:
                remaining = sequence.remaining - computed.get(sequence.owner, 0)
                pending.append(
                    PendingPrompt(
                        sequence.owner,
                        sequence.lane,
                        remaining,
                        prompt.deadline_s,
                        prompt.arrival,
                    )
                )
        return pending

    def _computed_under_way(self) -> dict[str, int]:
        """The estimated computed tokens of each owner in passes under way; never all of them."""
        found = {}
        for begun in self._begun:
            pass_s = self.order.cost.seconds(begun.tokens)
            part = begun.seconds / pass_s if pass_s else 0.0
            for span in begun.prompts:
                found[span.sequence.owner] = min(span.count - 1, int(span.count * part))
        return found
