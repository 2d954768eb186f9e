"""The prompts that wait on a replica for prefill, as a router knows them. Pure.

A router knows at once which prompts it placed itself. A report says how many prompt tokens are due
on the replica. Of the router's own tokens, those that are missing in the report were computed, of
the oldest prompts of a lane first. Tokens that the report has beyond them belong to other routers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.placement.cost_model import PrefillCost
from cluster.placement.edf_forecast import EdfPrompt
from cluster.replica_record import ReplicaLoad
from engine.types.urgency import Urgency, raised

# Bound: a prompt placed later than this before a report may be missing in it while on its way. It
# is the time of messages between processes, whatever computes the prompts.
_TRAVEL_S = 0.02


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """A prompt placed on a replica: `tokens` are to be computed behind `cached` tokens.

    `deadline_s` is when its first token is due. Prompts of the `batch` lane give way to all others.
    `urgency` is the urgency that the prompt was planned with.
    """

    tokens: int
    cached: int = 0
    deadline_s: float = 0.0
    batch: bool = False
    urgency: Urgency = Urgency.NONE


@dataclass(frozen=True, slots=True)
class RemainingPrompt:
    """A prompt that was placed at `placed_s`, and how many `tokens` are still to be computed.

    `urgency` is the prompt's own, or that of prompts that wait with it.
    """

    prompt: PlacedPrompt
    tokens: int
    placed_s: float
    urgency: Urgency


@dataclass(slots=True)
class _WaitingPrompt:
    prompt: PlacedPrompt
    placed_s: float
    urgency: Urgency


class PrefillBacklog:
    """The prompts placed on a replica from here, and the tokens that others placed there.

    `reported` says whether a fresh report counts. `progressed_s` is when a report last said that
    the replica had computed prompt tokens.
    """

    def __init__(self) -> None:
        self.others = 0
        self.reported = False
        self.progressed_s = float("-inf")
        # Computed tokens of the prompts from here, by lane: batch or not.
        self._done = {False: 0, True: 0}
        self._waiting: dict[int, _WaitingPrompt] = {}
        self._next = 0

    def add(self, prompt: PlacedPrompt, now: float) -> int:
        """Count a prompt from now on; returns the key to `drop` it by.

        The prompts that wait there share its urgency, as they do on the replica.
        """
        urgency = prompt.urgency
        if not prompt.batch:
            urgency = raised(urgency, self.urgency, behind=True)
            for one in self._waiting.values():
                if not one.prompt.batch:
                    one.urgency = raised(one.urgency, urgency)
        self._next += 1
        self._waiting[self._next] = _WaitingPrompt(prompt, now, urgency)
        return self._next

    def drop(self, key: int) -> None:
        """Count a prompt no more."""
        prompt = self._waiting.pop(key).prompt
        self._done[prompt.batch] = max(0, self._done[prompt.batch] - prompt.tokens)

    def report(self, tokens: int, now: float, batch_tokens: int = 0) -> None:
        """Take a report of `tokens` due, of which `batch_tokens` are of the batch lane."""
        others, progressed = 0, False
        for batch, due in ((False, tokens - batch_tokens), (True, batch_tokens)):
            own = [one for one in self._waiting.values() if one.prompt.batch is batch]
            arrived = sum(one.prompt.tokens for one in own if one.placed_s <= now - _TRAVEL_S)
            done = max(self._done[batch], arrived - due)
            progressed |= done > self._done[batch]
            self._done[batch] = done
            others += max(0, due - (sum(one.prompt.tokens for one in own) - done))
        if progressed or others < self.others:
            self.progressed_s = now
        self.others, self.reported = others, True

    def unreport(self) -> None:
        """Ignore the last report, which is too old."""
        self.others, self.reported = 0, False

    def remaining(self) -> list[RemainingPrompt]:
        """The prompts placed from here, oldest first, and the batch lane behind all others."""
        done, found = dict(self._done), []
        for one in sorted(self._waiting.values(), key=lambda one: one.prompt.batch):
            prompt = one.prompt
            took = min(done[prompt.batch], prompt.tokens - 1)
            done[prompt.batch] -= took
            found.append(RemainingPrompt(prompt, prompt.tokens - took, one.placed_s, one.urgency))
        return found

    @property
    def urgency(self) -> Urgency:
        """The highest urgency of the prompts from here, without the batch lane.

        A prompt of the batch lane raises no other prompt, because it gives way to the streams, too.
        """
        urgencies = (one.urgency for one in self._waiting.values() if not one.prompt.batch)
        return max(urgencies, default=Urgency.NONE)

    @property
    def batch_prompts(self) -> int:
        """The number of prompts of the batch lane from here."""
        return sum(one.prompt.batch for one in self._waiting.values())

    def busy_s(self) -> float:
        """Since when a prompt from here has been there; infinity without a prompt."""
        return min((one.placed_s for one in self._waiting.values()), default=float("inf"))

    def is_busy(self, load: ReplicaLoad) -> bool:
        """Whether any router's prompt is due there."""
        return bool(self._waiting) or self.others_of(load) > 0

    def others_of(self, load: ReplicaLoad) -> int:
        """The tokens that other routers placed there, by `load` if there is no fresh report."""
        if self.reported:
            return self.others
        return max(0, load.prompt_tokens_due - sum(one.tokens for one in self.remaining()))


def edf_prompts(
    backlog: PrefillBacklog,
    cost: PrefillCost,
    now: float,
    batch: bool = False,
    newcomer: Urgency = Urgency.NONE,
) -> list[EdfPrompt]:
    """The prompts from here that wait on a replica, in seconds of computing.

    Prompts of the batch lane are included if `batch` says so. `newcomer` is the urgency of a prompt
    that would come behind them. The oldest prompt has been computed since the latest of
    three times: it was placed, the prompt before it ended, or a report told of progress. Prompts
    that were there then and may share its pass are computed with it.
    """
    found: list[EdfPrompt] = []
    begun_s, computed_s, room = 0.0, 0.0, cost.shared_tokens
    for one in backlog.remaining():
        prompt = one.prompt
        if batch or not prompt.batch:
            urgency = one.urgency if prompt.batch else raised(one.urgency, newcomer)
            before = prompt.cached + prompt.tokens - one.tokens
            seconds = cost.seconds(one.tokens, before, urgency, queued=True)
            if not found:
                begun_s = max(cost.ended_s, backlog.progressed_s, one.placed_s)
                computed_s = max(0.0, now - begun_s)
            shares = not found or (room > 0 and one.placed_s <= begun_s)
            done_s = min(computed_s, seconds) if shares else 0.0
            computed_s -= done_s
            room -= one.tokens
            found.append(EdfPrompt(seconds - done_s, prompt.deadline_s))
    return found
