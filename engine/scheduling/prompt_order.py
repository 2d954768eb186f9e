"""The order in which prompts are computed. Pure; the schedulers of both pools use it.

Between lanes: start-time fair queueing (Goyal, Vin and Cheng, 1996). Each lane that has work gets
its share of the tokens, and the others get what a lane leaves.

Within a lane, at each turn:

1. First come the prompts that can be on time, in the order of `engine.scheduling.edf`.
2. Then come the late prompts, shortest first.
3. One of every four tokens is kept for prompts that are late by more than the patience, oldest
   first. So no prompt starves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.config import require
from engine.scheduling.edf import MOST_IN_EXACT_ORDER, by_deadline, most_on_time, shortest_first
from engine.scheduling.pass_cost import PassCost, PassCosts
from engine.types.lane import LANES, Lane

# Promise: a prompt that is so late is overdue, and no prompt starves.
PATIENCE_S = 5.0
# Promise: the tokens of other prompts for each token of an overdue prompt.
OTHERS_PER_OVERDUE = 3
# Tuned, for TTFT: prompts share a pass up to this length, because a longer pass holds up the first
# of them. On shared cores sharing a pass saves little. A device of its own loses most of a pass
# that is short.
_PACKED_SHARED_CORES_S = 0.03
_PACKED_S = 0.1
# Tuned: a prompt overtakes a pass that has at least so many times its tokens.
_OVERTAKES = 2


@dataclass(frozen=True, slots=True)
class LaneShares:
    """The share of each lane in the prompt tokens while the other lanes want them, too."""

    # Promise: a user may set them.
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
    """The passes that were begun: the owners in them, and the lane and tokens of the last one."""

    owners: Collection[str]
    lane: Lane
    tokens: int


class PromptOrder:
    """Chooses passes of at most `chunk_tokens`, and counts the tokens of each lane.

    `cost` is the cost of these passes. `shared_cores` says that other engines compute on the same
    cores.
    """

    def __init__(
        self, chunk_tokens: int, shares: LaneShares | None = None, *, shared_cores: bool = True
    ) -> None:
        self.cost = PassCost(chunk_tokens)
        self._chunk_tokens = chunk_tokens
        self._packed_s = _PACKED_SHARED_CORES_S if shared_cores else _PACKED_S
        self._shares = shares or LaneShares()
        self._served: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
        self._clock = 0.0
        self._owed: dict[Lane, float] = dict.fromkeys(LANES, 0.0)

    @property
    def tokens_per_s(self) -> float | None:
        """The recent speed of full passes; None before the first pass."""
        full_s = self.cost.seconds(self._chunk_tokens)
        return self._chunk_tokens / full_s if full_s else None

    @property
    def pass_costs(self) -> PassCosts | None:
        """The costs of passes for routers; None before the first pass."""
        timing = self.cost.timing
        if timing is None:
            return None
        return PassCosts(timing, self._packed_tokens, self._chunk_tokens)

    def learn(self, tokens: int, seconds: float) -> None:
        """Learn that a pass of so many prompt tokens took `seconds`."""
        self.cost.learn(tokens, seconds)

    def wait_s(self, tokens: int) -> float | None:
        """The predicted seconds for so many tokens of waiting prompts; None if unknown."""
        return self.cost.wait_s(tokens, self._packed_tokens)

    def chunk(
        self,
        prompts: Collection[PendingPrompt],
        now: float,
        admit: Callable[[PendingPrompt], int],
        under_way: UnderWay | None = None,
        most_tokens: int | None = None,
    ) -> list[tuple[PendingPrompt, int]]:
        """The prompts of the next pass, each with a number of tokens; their lane is charged.

        `admit` gives the tokens of a prompt that are to be computed: fewer where some were cached,
        and 0 where the prompt cannot run now. With passes `under_way` the result has only prompts
        that should overtake them. `most_tokens` bounds the pass further.
        """
        most = min(self._chunk_tokens, most_tokens or self._chunk_tokens)
        lanes = {prompt.lane for prompt in prompts}
        for lane in sorted(lanes, key=lambda lane: (self._start(lane), LANES.index(lane))):
            ranked = self._ranked([prompt for prompt in prompts if prompt.lane == lane], now)
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

        The shares of the other lanes let some of their tokens pass meanwhile, which count, too.
        """
        waiting: dict[Lane, list[PendingPrompt]] = {}
        for prompt in prompts:
            waiting.setdefault(prompt.lane, []).append(prompt)
        totals = {lane: sum(one.length for one in own) for lane, own in waiting.items()}
        return [self._behind_each(lane, own, totals, now) for lane, own in waiting.items()]

    def _behind_each(
        self, lane: Lane, own: list[PendingPrompt], totals: Mapping[Lane, int], now: float
    ) -> list[tuple[PendingPrompt, int]]:
        exact = len(own) <= MOST_IN_EXACT_ORDER
        ranked = self._ranked(own, now) if exact else sorted(own, key=by_deadline)
        found, before, share = [], 0, getattr(self._shares, lane)
        for prompt in ranked:
            others = sum(
                min(total, int((before + prompt.length) * getattr(self._shares, other) / share))
                for other, total in totals.items()
                if other != lane
            )
            found.append((prompt, before + others))
            before += prompt.length
        return found

    def _fill(
        self,
        ranked: Iterator[PendingPrompt],
        admit: Callable[[PendingPrompt], int],
        under_way: UnderWay | None,
        budget: int,
    ) -> list[tuple[PendingPrompt, int]] | None:
        """The pass's prompts, from the ranked ones; None where the passes under way come first."""
        chunk: list[tuple[PendingPrompt, int]] = []
        total = 0
        for prompt in ranked:
            if under_way is not None and not chunk and not self._overtakes(prompt, under_way):
                return None
            if under_way is not None and prompt.owner in under_way.owners:
                break
            count = min(admit(prompt), budget - total)
            if not count:
                continue
            chunk.append((prompt, count))
            total += count
            budget = min(budget, self._packed_tokens)
            if total >= budget:
                break
        return chunk

    def _overtakes(self, prompt: PendingPrompt, under_way: UnderWay) -> bool:
        """Whether a pass waits for this prompt, which is much shorter or of an earlier lane."""
        if prompt.owner in under_way.owners:
            return False
        if LANES.index(prompt.lane) != LANES.index(under_way.lane):
            return LANES.index(prompt.lane) < LANES.index(under_way.lane)
        return _OVERTAKES * prompt.length <= under_way.tokens

    @property
    def _packed_tokens(self) -> int:
        tokens_per_s = self.tokens_per_s
        if tokens_per_s is None:
            return self._chunk_tokens
        return max(1, min(self._chunk_tokens, int(self._packed_s * tokens_per_s)))

    def _start(self, lane: Lane) -> float:
        # A lane that had no work does not save up its unused share.
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
        others = sum(count for prompt, count in chunk if not _overdue(prompt, now))
        if any(prompt.lane == lane and _overdue(prompt, now) for prompt in prompts):
            self._owed[lane] += others / OTHERS_PER_OVERDUE - (tokens - others)
            self._owed[lane] = max(0.0, self._owed[lane])
        else:
            self._owed[lane] = 0.0

    def _ranked(self, prompts: Sequence[PendingPrompt], now: float) -> Iterator[PendingPrompt]:
        """The prompts of one lane, best first."""
        overdue = sorted((prompt for prompt in prompts if _overdue(prompt, now)), key=by_deadline)
        if overdue and self._owed[overdue[0].lane] >= self._chunk_tokens:
            yield from overdue
            prompts = [prompt for prompt in prompts if not _overdue(prompt, now)]
        tokens_per_s = self.tokens_per_s
        token_s = 1 / tokens_per_s if tokens_per_s else 0.0
        on_time = most_on_time(prompts, now, token_s)
        kept = {prompt.owner for prompt in on_time}
        yield from shortest_first(on_time, now, token_s)
        yield from sorted((one for one in prompts if one.owner not in kept), key=_by_length)


def _overdue(prompt: PendingPrompt, now: float) -> bool:
    return now - prompt.deadline_s > PATIENCE_S


def _by_length(prompt: PendingPrompt) -> tuple[int, float, int]:
    return prompt.length, prompt.deadline_s, prompt.arrival
