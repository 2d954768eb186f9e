"""Which prompts are computed next. Pure; the schedulers of both pools use it.

Between lanes: start-time fair queueing (Goyal, Vin and Cheng, 1996), so each lane that has work
gets its share of the tokens, and what a lane leaves goes to the others.

Within a lane, at each turn:

1. of the prompts that can all still meet their deadlines, as many as possible (Moore's algorithm,
   1968): the shortest first for which the others' deadlines leave time, else the most urgent;
2. then those that will be late, shortest first;
3. but of every four tokens one is kept for prompts that are late by more than the patience, oldest
   first, so that nobody starves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.config import require
from engine.scheduling.edf import MOST_IN_EXACT_ORDER, by_deadline, most_on_time, shortest_first
from engine.types.lane import LANES, Lane

# How late a prompt is when it becomes overdue, and what others are given for each of its tokens.
PATIENCE_S = 5.0
OTHERS_PER_OVERDUE = 3
# Prompts share a pass while it is no longer than that: more would hold up the first of them.
_PACKED_S = 0.03
# What a clock too coarse for a short pass must not make of it.
_LEAST_TOKEN_S = 1e-9


@dataclass(frozen=True, slots=True)
class LaneShares:
    """What each lane gets of the prompt tokens while the others want them too."""

    interactive: float = 60.0
    """The share of the lane `interactive`."""
    streaming: float = 25.0
    """The share of the lane `streaming`."""
    scoring: float = 10.0
    """The share of the lane `scoring`."""
    batch: float = 5.0
    """The share of the lane `batch`."""

    def __post_init__(self) -> None:
        for lane in LANES:
            require(getattr(self, lane) > 0, f"{lane} must be positive")


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """A prompt that waits for computing.

    `length` counts the tokens that have no KV yet. `arrival` rises with each prompt.
    """

    owner: str
    lane: Lane
    length: int
    deadline_s: float
    arrival: int


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Passes that were begun: whose prompts they have, and the lane and tokens of the last one."""

    owners: Collection[str]
    lane: Lane
    tokens: int


class PromptOrder:
    """Chooses chunks of at most `chunk_tokens` and remembers which lane had how much."""

    def __init__(self, chunk_tokens: int, shares: LaneShares | None = None) -> None:
        self._chunk_tokens = chunk_tokens
        self._shares = shares or LaneShares()
        self._served: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
        self._clock = 0.0
        self._owed: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
        self._token_s: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """How fast prompts were computed lately; None before the first."""
        return 1 / self._token_s if self._token_s else None

    def learn(self, tokens: int, seconds: float) -> None:
        """A pass of that many prompt tokens took so long."""
        if tokens < 1 or seconds <= 0:
            return
        seen = max(seconds / tokens, _LEAST_TOKEN_S)
        known = seen if self._token_s is None else self._token_s
        self._token_s = known + min(1.0, tokens / (2 * self._chunk_tokens)) * (seen - known)

    def chunk(
        self,
        prompts: Collection[PendingPrompt],
        now: float,
        admit: Callable[[PendingPrompt], int],
        under_way: UnderWay | None = None,
        most_tokens: int | None = None,
    ) -> list[tuple[PendingPrompt, int]]:
        """The prompts of the next pass, with how many of their tokens; charged to their lane.

        `admit` gives the tokens of a prompt that are to be computed, fewer where some were cached;
        0 where it cannot run now. With passes under way, only what should overtake them.
        `most_tokens` is for a pass smaller than the largest.
        """
        most = min(self._chunk_tokens, most_tokens or self._chunk_tokens)
        lanes = {due.lane for due in prompts}
        for lane in sorted(lanes, key=lambda lane: (self._start(lane), LANES.index(lane))):
            ranked = self._ranked([due for due in prompts if due.lane == lane], now)
            found = self._fill(ranked, admit, under_way, most)
            if found is None:
                return []
            if found:
                self._charge(lane, found, prompts, now)
                return found
        return []

    def lanes(
        self, prompts: Collection[PendingPrompt], now: float
    ) -> list[list[tuple[PendingPrompt, int]]]:
        """The prompts of each lane in their order, each with the tokens that come before it.

        Those are of its own lane, and of the others what their shares let pass meanwhile.
        """
        due: dict[Lane, list[PendingPrompt]] = {}
        for prompt in prompts:
            due.setdefault(prompt.lane, []).append(prompt)
        totals = {lane: sum(one.length for one in own) for lane, own in due.items()}
        return [self._behind_each(lane, own, totals, now) for lane, own in due.items()]

    def _behind_each(
        self, lane: Lane, own: list[PendingPrompt], totals: Mapping[Lane, int], now: float
    ) -> list[tuple[PendingPrompt, int]]:
        exact = len(own) <= MOST_IN_EXACT_ORDER
        ranked = self._ranked(own, now) if exact else sorted(own, key=by_deadline)
        found, before, share = [], 0, getattr(self._shares, lane)
        for due in ranked:
            others = sum(
                min(total, int((before + due.length) * getattr(self._shares, other) / share))
                for other, total in totals.items()
                if other != lane
            )
            found.append((due, before + others))
            before += due.length
        return found

    def _fill(
        self,
        ranked: Iterator[PendingPrompt],
        admit: Callable[[PendingPrompt], int],
        under_way: UnderWay | None,
        budget: int,
    ) -> list[tuple[PendingPrompt, int]] | None:
        """A pass's prompts from the ranked ones; None where what is under way comes first."""
        chunk: list[tuple[PendingPrompt, int]] = []
        total = 0
        for due in ranked:
            if under_way is not None and not chunk and not self._overtakes(due, under_way):
                return None
            if under_way is not None and due.owner in under_way.owners:
                break
            count = min(admit(due), budget - total)
            if not count:
                continue
            chunk.append((due, count))
            total += count
            budget = min(budget, self._packed_tokens)
            if total >= budget:
                break
        return chunk

    def _overtakes(self, due: PendingPrompt, under_way: UnderWay) -> bool:
        """Whether a pass may be held up for this prompt: much shorter, or of a better lane."""
        if due.owner in under_way.owners:
            return False
        if LANES.index(due.lane) != LANES.index(under_way.lane):
            return LANES.index(due.lane) < LANES.index(under_way.lane)
        return 2 * due.length <= under_way.tokens

    @property
    def _packed_tokens(self) -> int:
        if self._token_s is None:
            return self._chunk_tokens
        return max(1, min(self._chunk_tokens, int(_PACKED_S / self._token_s)))

    def _start(self, lane: Lane) -> float:
        # A lane that had no work does not save up what it did not use.
        return max(self._served[lane], self._clock)

    def _charge(
        self,
        lane: Lane,
        chunk: list[tuple[PendingPrompt, int]],
        prompts: Collection[PendingPrompt],
        now: float,
    ) -> None:
        tokens = sum(count for _, count in chunk)
        self._clock = self._start(lane)
        self._served[lane] = self._clock + tokens / getattr(self._shares, lane)
        others = sum(count for due, count in chunk if not _overdue(due, now))
        if any(due.lane == lane and _overdue(due, now) for due in prompts):
            self._owed[lane] += others / OTHERS_PER_OVERDUE - (tokens - others)
            self._owed[lane] = max(0.0, self._owed[lane])
        else:
            self._owed[lane] = 0.0

    def _ranked(self, prompts: Sequence[PendingPrompt], now: float) -> Iterator[PendingPrompt]:
        """The prompts of one lane, best first."""
        overdue = sorted((due for due in prompts if _overdue(due, now)), key=by_deadline)
        if overdue and self._owed[overdue[0].lane] >= self._chunk_tokens:
            yield from overdue
            prompts = [due for due in prompts if not _overdue(due, now)]
        token_s = self._token_s or 0.0
        on_time = most_on_time(prompts, now, token_s)
        kept = {prompt.owner for prompt in on_time}
        yield from shortest_first(on_time, now, token_s)
        yield from sorted((one for one in prompts if one.owner not in kept), key=_by_length)


def _overdue(due: PendingPrompt, now: float) -> bool:
    return now - due.deadline_s > PATIENCE_S


def _by_length(prompt: PendingPrompt) -> tuple[int, float, int]:
    return prompt.length, prompt.deadline_s, prompt.arrival
