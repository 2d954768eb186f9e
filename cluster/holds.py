"""What waits and runs on each replica, as a router knows it. Pure.

A router knows at once what it placed itself. What others placed is what a replica reports less
what the router had there itself by then; prompt tokens that are missing in a report were computed,
of the oldest prompts first. Without fresh reports the larger of the two counts stands, as one
may be old and the other sees one router only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cluster.cost_model import Pace
from cluster.membership import ReplicaLoad, ReplicaRecord

# What was placed later than this before a report may be in it or not; what is counts once.
_TRAVEL_S = 0.02


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was placed: `tokens` of it to be computed behind `cached` ones.

    `deadline_s` is when its first token is due; `batch` work gives way to all other; `pace` is how
    it is thought to be computed.
    """

    tokens: int
    cached: int = 0
    deadline_s: float = 0.0
    batch: bool = False
    pace: Pace = Pace.ALONE


class Hold:
    """One request's share in a replica's load."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Take it back. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


@dataclass(frozen=True, slots=True)
class _Waiting:
    prompt: Prompt
    placed_s: float


class PromptQueue:
    """The prompts placed on a replica from here, and how many tokens of others are due there."""

    def __init__(self) -> None:
        self.others = 0
        self._due: int | None = None
        self._due_s = float("-inf")
        self._progressed_s = float("-inf")
        self._waiting: dict[int, _Waiting] = {}
        self._next = 0

    @property
    def reported(self) -> bool:
        """Whether the replica has said lately what is due there."""
        return self._due is not None

    def add(self, prompt: Prompt, now: float) -> int:
        """Count it from now on; returns the key to `drop` it by."""
        self._next += 1
        self._waiting[self._next] = _Waiting(prompt, now)
        return self._next

    def drop(self, key: int) -> None:
        """Count it no more."""
        del self._waiting[key]

    def report(self, tokens: int, now: float) -> None:
        """That many prompt tokens are due on the replica, of everybody's."""
        if self._due is not None and tokens < self._due:
            self._progressed_s = now
        self._due, self._due_s = tokens, now
        self.others = max(0, tokens - sum(one.prompt.tokens for one in self._waiting.values()))

    def unreport(self) -> None:
        """What was reported is too old to count."""
        self.others, self._due = 0, None

    def left(self) -> list[tuple[Prompt, int]]:
        """The prompts placed from here, oldest first, each with its tokens still to be computed."""
        known_s = self._due_s - _TRAVEL_S
        there = sum(one.prompt.tokens for one in self._waiting.values() if one.placed_s <= known_s)
        done = 0 if self._due is None else max(0, there - self._due)
        found = []
        # Work of the batch lane gives way.
        for one in sorted(self._waiting.values(), key=lambda one: one.prompt.batch):
            took = min(done, one.prompt.tokens - 1) if one.placed_s <= known_s else 0
            found.append((one.prompt, one.prompt.tokens - took))
            done -= took
        return found

    @property
    def pressed(self) -> bool:
        """Whether one is computed, or waits, at whose pace streams wait as long as they may.

        None of the batch lane is, which gives way to the streams, too.
        """
        prompts = (one.prompt for one in self._waiting.values())
        return any(one.pace is Pace.PRESSED and not one.batch for one in prompts)

    @property
    def begun_s(self) -> float:
        """Since when what is computed there now has been, as far as is known here."""
        return max(self.busy_s(), self._progressed_s)

    def busy_s(self) -> float:
        """Since when there has been a prompt from here, if there is one."""
        return min((one.placed_s for one in self._waiting.values()), default=float("inf"))

    def busy(self, load: ReplicaLoad) -> bool:
        """Whether a prompt is due there, of anybody."""
        return bool(self._waiting) or self.others_of(load) > 0

    def others_of(self, load: ReplicaLoad) -> int:
        """Tokens of others that are due there."""
        if self.reported:
            return self.others
        return max(0, load.prompt_tokens_due - sum(left for _, left in self.left()))


class Tally:
    """An amount of something on a replica: what was placed from here, and what was not."""

    def __init__(self) -> None:
        self.own = 0
        self.others = 0.0
        self.reported = False
        self._placed: dict[int, int] = {}
        self._next = 0

    @property
    def total(self) -> float:
        """Everybody's."""
        return self.own + self.others

    def add(self, amount: int) -> int:
        """Count it from now on; returns the key to `drop` it by."""
        self._next += 1
        self._placed[self._next] = amount
        self.own += amount
        return self._next

    def drop(self, key: int) -> None:
        """Count it no more."""
        self.own -= self._placed.pop(key)

    def report(self, amount: float) -> None:
        """The replica has this much, of everybody's."""
        self.others = max(0.0, amount - self.own)
        self.reported = True

    def unreport(self) -> None:
        """What was reported is too old to count."""
        self.others = 0.0
        self.reported = False


@dataclass(slots=True)
class _Held:
    queue: PromptQueue = field(default_factory=PromptQueue)
    requests: Tally = field(default_factory=Tally)
    blocks: Tally = field(default_factory=Tally)
    gaps: Counter[float] = field(default_factory=Counter)
    last: int = 0


class Holds:
    """Everything that is known to be on the replicas."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._turn = 0

    def prompt(self, replica: str, prompt: Prompt, now: float) -> Hold:
        """A prompt was placed there, until its first token."""
        queue = self._of(replica).queue
        key = queue.add(prompt, now)
        return Hold(lambda: queue.drop(key))

    def request(self, replica: str, blocks: int, gap_s: float) -> Hold:
        """A request was placed there, until its end.

        It may come to need so many blocks, and its tokens are to be at most `gap_s` apart.
        """
        held = self._of(replica)
        self._turn += 1
        held.last = self._turn
        one, promised = held.requests.add(1), held.blocks.add(blocks)
        held.gaps[gap_s] += 1

        def release() -> None:
            held.requests.drop(one)
            held.blocks.drop(promised)
            held.gaps[gap_s] -= 1
            if not held.gaps[gap_s]:
                del held.gaps[gap_s]

        return Hold(release)

    def report(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """A replica has just said what it is doing."""
        held = self._of(replica)
        held.queue.report(load.prompt_tokens_due, now)
        held.requests.report(load.waiting + load.running)
        held.blocks.report(load.blocks_promised)

    def unreport(self, replica: str) -> None:
        """What this replica said last is too old to count."""
        held = self._of(replica)
        for known in (held.queue, held.requests, held.blocks):
            known.unreport()

    def queue(self, replica: str) -> PromptQueue:
        """The prompts that wait there for their first token."""
        return self._of(replica).queue

    def requests(self, record: ReplicaRecord) -> int:
        """Requests there, of everybody."""
        tally = self._of(record.id).requests
        if tally.reported:
            return round(tally.total)
        return max(tally.own, record.load.waiting + record.load.running)

    def blocks(self, record: ReplicaRecord) -> int:
        """Blocks promised there, to everybody."""
        tally = self._of(record.id).blocks
        return round(tally.total) if tally.reported else max(tally.own, record.load.blocks_promised)

    def gap_s(self, replica: str) -> float:
        """The smallest token gap that a request placed there from here was promised."""
        return min(self._of(replica).gaps, default=float("inf"))

    def last(self, replica: str) -> int:
        """The turn in which the replica was given a request; the smaller, the longer ago."""
        return self._of(replica).last

    def forget(self, living: Iterable[str]) -> None:
        """Drop replicas that hold nothing and are gone."""
        living = set(living)
        self._held = {
            name: held for name, held in self._held.items() if held.requests.own or name in living
        }

    def _of(self, replica: str) -> _Held:
        if replica not in self._held:
            self._held[replica] = _Held()
        return self._held[replica]
