"""The waiting and running requests of each replica, as a router knows them. Pure.

A router counts at once what it places itself. Without fresh reports the larger of two counts
stands, its own or the replica's record: the record may be old, and the router sees only its own
requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cluster.placement.prefill_backlog import PlacedPrompt, PrefillBacklog
from cluster.replica_record import ReplicaLoad, ReplicaRecord


class LoadShare:
    """One request's share in a replica's load."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Count the request no more. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


class Tally:
    """An amount on a replica: the part of this router, and the part of other routers."""

    def __init__(self) -> None:
        self.own = 0
        self.others = 0.0
        self.reported = False
        self._placed: dict[int, int] = {}
        self._next = 0

    @property
    def total(self) -> float:
        """The sum of both parts."""
        return self.own + self.others

    def add(self, amount: int) -> int:
        """Count an amount from now on; returns the key to `drop` it by."""
        self._next += 1
        self._placed[self._next] = amount
        self.own += amount
        return self._next

    def drop(self, key: int) -> None:
        """Count an amount no more."""
        self.own -= self._placed.pop(key)

    def report(self, amount: float) -> None:
        """Take a report: the replica has this amount in all."""
        self.others = max(0.0, amount - self.own)
        self.reported = True

    def unreport(self) -> None:
        """Ignore the last report, which is too old."""
        self.others = 0.0
        self.reported = False


@dataclass(slots=True)
class _TrackedLoad:
    prompts: PrefillBacklog = field(default_factory=PrefillBacklog)
    requests: Tally = field(default_factory=Tally)
    blocks: Tally = field(default_factory=Tally)
    itls_s: Counter[float] = field(default_factory=Counter)
    last: int = 0


class ReplicaLoadTracker:
    """The known load of all replicas, by replica id."""

    def __init__(self) -> None:
        self._loads: defaultdict[str, _TrackedLoad] = defaultdict(_TrackedLoad)
        self._turn = 0

    def prompt(self, replica: str, prompt: PlacedPrompt, now: float) -> LoadShare:
        """Count a prompt that is placed on the replica, until its first token."""
        backlog = self._loads[replica].prompts
        key = backlog.add(prompt, now)
        return LoadShare(lambda: backlog.drop(key))

    def request(self, replica: str, blocks: int, itl_s: float) -> LoadShare:
        """Count a request that is placed on the replica, until its end.

        The request is promised so many blocks, and an inter-token latency of at most `itl_s`.
        """
        load = self._loads[replica]
        self._turn += 1
        load.last = self._turn
        one, promised = load.requests.add(1), load.blocks.add(blocks)
        load.itls_s[itl_s] += 1

        def release() -> None:
            load.requests.drop(one)
            load.blocks.drop(promised)
            load.itls_s[itl_s] -= 1
            if not load.itls_s[itl_s]:
                del load.itls_s[itl_s]

        return LoadShare(release)

    def report(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """Take a fresh report of the replica's load."""
        known = self._loads[replica]
        known.prompts.report(load.prompt_tokens_due, now, load.batch_tokens_due)
        known.requests.report(load.waiting + load.running)
        known.blocks.report(load.blocks_promised)

    def unreport(self, replica: str) -> None:
        """Ignore the replica's last report, which is too old."""
        load = self._loads[replica]
        for known in (load.prompts, load.requests, load.blocks):
            known.unreport()

    def backlog(self, replica: str) -> PrefillBacklog:
        """The prompts that wait on the replica for their first token."""
        return self._loads[replica].prompts

    def requests(self, record: ReplicaRecord) -> int:
        """The requests on the replica, of all routers."""
        tally = self._loads[record.id].requests
        if tally.reported:
            return round(tally.total)
        return max(tally.own, record.load.waiting + record.load.running)

    def blocks(self, record: ReplicaRecord) -> int:
        """The blocks promised on the replica, to requests of all routers."""
        tally = self._loads[record.id].blocks
        return round(tally.total) if tally.reported else max(tally.own, record.load.blocks_promised)

    def itl_s(self, replica: str) -> float:
        """The smallest inter-token latency promised there from here; infinity without a promise."""
        return min(self._loads[replica].itls_s, default=float("inf"))

    def rank(self, record: ReplicaRecord) -> tuple[int, int]:
        """The sort key of the least loaded: the requests there, then the turn of the last one.

        A smaller turn is longer ago, so replicas of equal load take turns.
        """
        return self.requests(record), self._loads[record.id].last

    def forget(self, living: Iterable[str]) -> None:
        """Drop replicas that are gone and have no requests from here."""
        living = set(living)
        for name, load in list(self._loads.items()):
            if not load.requests.own and name not in living:
                del self._loads[name]
