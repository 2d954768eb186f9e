"""Adds to rows what they waited behind in other routers.

A replica serves all routers, and each router knows its own requests alone. So the other routers are
asked what of theirs had the replica meanwhile, when an operator asks for a row. Each router tells
times on its own clock. The difference of two clocks is measured with the question before, and what
had the replica for less than the error of this measurement is left out.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from cluster.console.row_view import in_its_words
from cluster.console.source import Json
from cluster.console.words import in_words
from cluster.gateway.sse import dump
from cluster.router.peers.clocks import SAME_CLOCK, ClockDifference
from cluster.router.peers.peer_calls import Peers
from cluster.telemetry.requests.behind import (
    LEAST_S,
    MOST_NAMED,
    ReplicaWait,
    blockers_of,
    waits_of,
)
from cluster.telemetry.requests.store import RequestStore
from protos import peer_pb2
from protos.peer_pb2 import BlockersAnswer, BlockersQuestion, PeerQuestion

NO_CLOCK = "its version does not tell its clock"
# Bound: waits of a row, the longest ones, whose blockers are asked for.
_MOST_WAITS = 64
# What the words about a blocker read of it.
_KINDS: Mapping[str, type[int | str]] = {
    **dict.fromkeys(("stage", "request_id", "tenant", "endpoint"), str),
    **dict.fromkeys(("choice", "of_choice", "prompt_tokens"), int),
}
# What a row of another router may raise where it is bad.
BAD_ROW = (
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
    *(ArithmeticError, OSError),  # a share of no time, and a date beyond the system's
)


@dataclass(frozen=True, slots=True)
class KnownClocks:
    """The clocks of the routers that answered, and the routers that did not, with the reason."""

    clocks: Mapping[str, ClockDifference | None] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


class GatheredBlockers:
    """Asks the other routers, and answers them from the rows of this router."""

    def __init__(self, store: RequestStore, peers: Peers) -> None:
        self._store = store
        self._peers = peers

    async def answer(self, question: BlockersQuestion) -> BlockersAnswer:
        """The blockers of these waits among the requests of this router."""
        waits = [
            ReplicaWait(one.stage, one.choice, one.replica, one.begin_at, one.end_at, one.least_s)
            for one in question.waits[:_MOST_WAITS]
        ]
        return BlockersAnswer(blockers=map(json.dumps, await self._own(waits)))

    async def added(self, row: Json, known: KnownClocks) -> Json:
        """The row with the blockers of other routers in `behind`, each with its router's name.

        `behind_without` names the routers whose requests could not be compared, and says why.
        """
        router = row.get("router", self._peers.name)
        waits = sorted(waits_of(row), key=lambda one: one.begin_s - one.end_s)[:_MOST_WAITS]
        clocks: dict[str, ClockDifference | None] = {self._peers.name: SAME_CLOCK}
        clocks |= known.clocks
        its_clock = clocks.get(router)
        if not waits:
            return row
        without = dict(known.silent)
        questions = {}
        for name, clock in clocks.items():
            if name == router:
                continue
            if clock is None or its_clock is None:
                without[name] = NO_CLOCK
            else:
                questions[name] = [self._seen_from(one, its_clock, clock) for one in waits]
        found = await self._asked(questions, without)
        begin_at = min(one.begin_s for one in waits) - (its_clock or SAME_CLOCK).ahead_s
        without |= self._peers.gone_since(begin_at)
        merged = row | {"behind": _longest(row["behind"], found)}
        if without:
            merged["behind_without"] = without
        return in_its_words(merged)

    def _seen_from(
        self, wait: ReplicaWait, its_clock: ClockDifference, clock: ClockDifference
    ) -> ReplicaWait:
        """The wait on the clock of another router."""
        age_s = self._peers.now() + its_clock.ahead_s - wait.end_s
        error_s = its_clock.error_at(age_s) + clock.error_at(age_s)
        ahead_s = clock.ahead_s - its_clock.ahead_s
        return ReplicaWait(
            wait.stage,
            wait.choice,
            wait.replica,
            wait.begin_s + ahead_s,
            wait.end_s + ahead_s,
            max(LEAST_S, error_s),
        )

    async def _asked(
        self, questions: dict[str, list[ReplicaWait]], without: dict[str, str]
    ) -> list[Json]:
        """The blockers of all routers. A router that cannot tell them is added to `without`."""
        own = questions.pop(self._peers.name, [])
        mine, asked = await asyncio.gather(
            self._own(own),
            self._peers.ask_each({name: _question(waits) for name, waits in questions.items()}),
        )
        found = [one | {"router": self._peers.name} for one in mine]
        without |= asked.silent
        for name, answer in asked.found.items():
            try:
                found += [_read(text) | {"router": name} for text in answer.blockers.blockers]
            except BAD_ROW:
                without[name] = "its answer cannot be read"
        return found

    async def _own(self, waits: list[ReplicaWait]) -> list[Json]:
        rows, running = list(self._store), self._store.running()
        found = await asyncio.to_thread(blockers_of, waits, rows, running)
        return [asdict(one) for one in found]


def check_whole(row: Json) -> None:
    """Read all that `explain` takes from a row of another router; raises one of BAD_ROW."""
    waits = waits_of(row)
    _question(waits)
    if not all(isinstance(one.choice, int) and isinstance(one.replica, str) for one in waits):
        raise ValueError("a wait of no choice or replica")
    for one in row["behind"]:
        if not isinstance(one["choice"], int) or not isinstance(one["stage"], str):
            raise ValueError("a blocker of no choice or stage")
        if not isinstance(one["seconds"], int | float):
            raise ValueError("a blocker of no time")
    in_words(row)


def _question(waits: list[ReplicaWait]) -> PeerQuestion:
    wire = [
        peer_pb2.ReplicaWait(
            stage=one.stage,
            choice=one.choice,
            replica=one.replica,
            begin_at=one.begin_s,
            end_at=one.end_s,
            least_s=one.least_s,
        )
        for one in waits
    ]
    return PeerQuestion(blockers=BlockersQuestion(waits=wire))


def _read(text: str) -> Json:
    """A blocker of another router, which JSON can tell; raises one of BAD_ROW."""
    found: Json = json.loads(text)
    seconds = float(found["seconds"])
    if not 0 < seconds < math.inf:
        raise ValueError("no time")
    read: Json = {name: kind(found[name]) for name, kind in _KINDS.items()}
    blocker = {**found, **read, "seconds": seconds}
    dump(blocker)
    return blocker


def _longest(own: list[Json], others: list[Json]) -> list[Json]:
    """The blockers of each wait, the longest first, within the bound."""
    waits: dict[tuple[int, bool, str], list[Json]] = {}
    for one in [*own, *others]:
        stage = one["stage"]
        waits.setdefault((one["choice"], stage != "prefill_queue", stage), []).append(one)
    return [
        one
        for _, found in sorted(waits.items())
        for one in sorted(found, key=lambda each: -each["seconds"])[:MOST_NAMED]
    ]
