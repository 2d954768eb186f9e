"""What waits and runs on each replica, as a router knows it. Pure.

A router knows at once what it placed itself. Of that, prompt tokens that are missing in a report
were computed, of the oldest prompts of their lane first; what a report has more than is left of it
others placed. Without fresh reports the larger of the two counts stands, as one may be old and the
other sees one router only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.types.urgency import Urgency, raised

# What was placed later than this before a report may be in it or not; what is counts once.
_TRAVEL_S = 0.02


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """A prompt that was placed: `tokens` of it to be computed behind `cached` ones.

    `deadline_s` is when its first token is due; `batch` work gives way to all other; `urgency` is
    that with which it was planned.
    """

    tokens: int
    cached: int = 0
    deadline_s: float = 0.0
    batch: bool = False
    urgency: Urgency = Urgency.NONE


class LoadShare:
    """One request's share in a replica's load."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Take it back. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


@dataclass(frozen=True, slots=True)
class Left:
    """A prompt that was placed at `placed_s`, and how many of its tokens are to be computed yet.

    `urgency` is its own, or that of one behind it.
    """

    prompt: PlacedPrompt
    tokens: int
    placed_s: float
    urgency: Urgency


@dataclass(slots=True)
class _Waiting:
    prompt: PlacedPrompt
    placed_s: float
    urgency: Urgency


class PrefillBacklog:
    """The prompts placed on a replica from here, and how many tokens of others are due there.

    `reported`: the replica has said lately what is due there; `progressed_s` is when it last said
    that it had computed some.
    """

    def __init__(self) -> None:
        self.others = 0
        self.reported = False
        self.progressed_s = float("-inf")
        # Of the prompts from here, by lane: batch or not.
        self._done = {False: 0, True: 0}
        self._waiting: dict[int, _Waiting] = {}
        self._next = 0

    def add(self, prompt: PlacedPrompt, now: float) -> int:
        """Count it from now on; returns the key to `drop` it by.

        Those that wait there take part in its urgency, as replicas have it.
        """
        urgency = prompt.urgency
        if not prompt.batch:
            urgency = raised(urgency, self.urgency, behind=True)
            for one in self._waiting.values():
                if not one.prompt.batch:
                    one.urgency = raised(one.urgency, urgency)
        self._next += 1
        self._waiting[self._next] = _Waiting(prompt, now, urgency)
        return self._next

    def drop(self, key: int) -> None:
        """Count it no more."""
        prompt = self._waiting.pop(key).prompt
        self._done[prompt.batch] = max(0, self._done[prompt.batch] - prompt.tokens)

    def report(self, tokens: int, now: float, batch_tokens: int = 0) -> None:
        """So many prompt tokens are due on the replica, of everybody's; some of the batch lane."""
        others, progressed = 0, False
        for batch, due in ((False, tokens - batch_tokens), (True, batch_tokens)):
            own = [one for one in self._waiting.values() if one.prompt.batch is batch]
            there = sum(one.prompt.tokens for one in own if one.placed_s <= now - _TRAVEL_S)
            done = max(self._done[batch], there - due)
            progressed |= done > self._done[batch]
            self._done[batch] = done
            others += max(0, due - (sum(one.prompt.tokens for one in own) - done))
        if progressed or others < self.others:
            self.progressed_s = now
        self.others, self.reported = others, True

    def unreport(self) -> None:
        """What was reported is too old to count."""
        self.others, self.reported = 0, False

    def left(self) -> list[Left]:
        """The prompts placed from here, oldest first, those of the batch lane behind all others."""
        done, found = dict(self._done), []
        for one in sorted(self._waiting.values(), key=lambda one: one.prompt.batch):
            prompt = one.prompt
            took = min(done[prompt.batch], prompt.tokens - 1)
            done[prompt.batch] -= took
            found.append(Left(prompt, prompt.tokens - took, one.placed_s, one.urgency))
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
        """Prompts of the batch lane from here."""
        return sum(one.prompt.batch for one in self._waiting.values())

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
        return max(0, load.prompt_tokens_due - sum(one.tokens for one in self.left()))


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
class _ReplicaLoad:
    queue: PrefillBacklog = field(default_factory=PrefillBacklog)
    requests: Tally = field(default_factory=Tally)
    blocks: Tally = field(default_factory=Tally)
    gaps: Counter[float] = field(default_factory=Counter)
    last: int = 0


class ReplicaLoadTracker:
    """Everything that is known to be on the replicas."""

    def __init__(self) -> None:
        self._held: dict[str, _ReplicaLoad] = {}
        self._turn = 0

    def prompt(self, replica: str, prompt: PlacedPrompt, now: float) -> LoadShare:
        """A prompt was placed there, until its first token."""
        queue = self._of(replica).queue
        key = queue.add(prompt, now)
        return LoadShare(lambda: queue.drop(key))

    def request(self, replica: str, blocks: int, itl_s: float) -> LoadShare:
        """A request was placed there, until its end.

        It may come to need so many blocks, and its tokens are to be at most `itl_s` apart.
        """
        held = self._of(replica)
        self._turn += 1
        held.last = self._turn
        one, promised = held.requests.add(1), held.blocks.add(blocks)
        held.gaps[itl_s] += 1

        def release() -> None:
            held.requests.drop(one)
            held.blocks.drop(promised)
            held.gaps[itl_s] -= 1
            if not held.gaps[itl_s]:
                del held.gaps[itl_s]

        return LoadShare(release)

    def report(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """A replica has just said what it is doing."""
        held = self._of(replica)
        held.queue.report(load.prompt_tokens_due, now, load.batch_tokens_due)
        held.requests.report(load.waiting + load.running)
        held.blocks.report(load.blocks_promised)

    def unreport(self, replica: str) -> None:
        """What this replica said last is too old to count."""
        held = self._of(replica)
        for known in (held.queue, held.requests, held.blocks):
            known.unreport()

    def queue(self, replica: str) -> PrefillBacklog:
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

    def itl_s(self, replica: str) -> float:
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

    def _of(self, replica: str) -> _ReplicaLoad:
        if replica not in self._held:
            self._held[replica] = _ReplicaLoad()
        return self._held[replica]
