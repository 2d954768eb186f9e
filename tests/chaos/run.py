"""One run: requests begin, a fault comes at a drawn moment, and everything is checked."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem_client import Client
from tests.chaos.faults import FAULTS, LENGTHS_S, PROCESSES, Fault, Injector
from tests.chaos.load import Answer, Request, Stream, requests
from tests.chaos.members import Member, Members, all_idle

# States of a request at which a fault comes; without one it comes at any time.
MOMENTS = (
    "queued",
    "prefilling",
    "handing over",
    "first token",
    "decoding",
    "recomputing",
    "finishing",
)
_MOMENT_S = 4.0
_IDLE_S = 30.0
_DECODING, _LAST = 8, 3
_STREAMS = (5, 9)
_CALM_TRIES, _AT_ONCE = 5, 6
# Tasks of one kind beyond those of the calm cluster, for calls and connections that open anew.
_TASKS_BESIDE = 24


@dataclass
class Outcome:
    """What came of a run. `moment` is empty where the fault came at any time.

    `open` streams had begun and not ended then.
    """

    number: int
    fault: Fault
    moment: str
    reached: bool = False
    delivered: bool = False
    open: int = 0
    streams: list[Stream] = field(default_factory=list)
    leaked: str = ""

    @property
    def bad(self) -> list[str]:
        """What must not be."""
        found = [
            f"{one.name} is {one.fate}: {one.why}" + (" (resumable)" if one.resumable else "")
            for one in self.streams
            if one.fate in ("lost", "repeated", "wrong", "endless")
        ]
        return [*found, self.leaked] if self.leaked else found


class Moments:
    """The states that requests reach, as the members and the client tell them."""

    def __init__(self) -> None:
        self.places: dict[str, dict[str, str]] = {}
        self._wanted = ""
        self._event = asyncio.Event()
        self.request = ""

    def expect(self, moment: str, prefix: str) -> None:
        """Wait for the first request of that prefix to reach the moment from now on."""
        self._wanted, self._prefix, self.request = moment, prefix, ""
        self._event.clear()

    async def come(self) -> bool:
        """Wait; False if nothing reached it in time."""
        try:
            await asyncio.wait_for(self._event.wait(), _MOMENT_S)
        except TimeoutError:
            return False
        return True

    def on_state(self, state: str, fields: dict[str, str]) -> None:
        """A member told that a request is in a state; `fields` name the request and members."""
        name = fields.pop("request_id", "")
        self.places.setdefault(name, {}).update(fields)
        self._reach(state, name)

    def on_tokens(self, name: str, have: int, want: int) -> None:
        """The client has so many of the tokens that it wants."""
        if have >= _DECODING:
            self._reach("decoding", name)
        if have >= want - _LAST:
            self._reach("finishing", name)

    def _reach(self, state: str, name: str) -> None:
        if state == self._wanted and name.startswith(self._prefix) and not self.request:
            self.request = name
            self._event.set()


class Chaos:
    """Runs on one cluster, which lives on from run to run.

    Faults last for about one of `lengths_s`. Of each kind of request there are `each`.
    """

    def __init__(
        self,
        found: Members,
        client: Client,
        seed: int,
        lengths_s: Sequence[float] = LENGTHS_S,
        each: int = 4,
    ) -> None:
        self._found = found
        self._client = client
        self._seed = seed
        self._lengths_s = lengths_s
        self.requests = requests(seed, each)
        self._answers = dict[str, Answer]()
        self._tasks = dict[str, Counter[str]]()
        self.moments = Moments()
        found.on_state = self.moments.on_state

    async def prepare(self) -> None:
        """Compute the undisturbed answers, and count the tasks of the calm cluster.

        Requests whose answer depends on its company, by rounding, are left out.
        """
        first = await self._calm(self.requests)
        again = await self._calm(sorted(self.requests, key=lambda one: len(one.prompt)))
        self.requests = [one for one in self.requests if again[one.name].ids == first[one.name].ids]
        self._answers = first
        await all_idle(self._found, _IDLE_S)
        for member in self._found.living:
            tasks = Counter((await member.load())["tasks"])
            self._tasks[member.role] = self._tasks.get(member.role, Counter()) | tasks

    async def _calm(self, some: Sequence[Request]) -> dict[str, Answer]:
        """The answers to these requests by name. A busy machine may fail some, which go again."""
        answers = dict[str, Answer]()
        for _ in range(_CALM_TRIES):
            missing = [one for one in some if one.name not in answers]
            for begin in range(0, len(missing), _AT_ONCE):
                streams = [
                    Stream(f"calm-{one.name}", one, resumable=False)
                    for one in missing[begin : begin + _AT_ONCE]
                ]
                await asyncio.gather(*(one.run(self._client, "calm", _silent) for one in streams))
                answers |= {one.request.name: one.answer for one in streams if one.error is None}
        if missing := [one.name for one in some if one.name not in answers]:
            raise RuntimeError(f"the calm cluster did not answer {missing}")
        return answers

    async def run(self, number: int) -> Outcome:
        """One fault among requests, drawn by the number of the run."""
        rng = random.Random(f"{self._seed}/{number}")
        fault = FAULTS[number % len(FAULTS)]
        moment = rng.choice(MOMENTS) if rng.random() < 0.7 else ""
        outcome = Outcome(number, fault, moment)
        prefix, injector = f"run{number}-", Injector(self._found, rng, self._lengths_s)
        outcome.streams = self._drawn(rng, prefix)
        self.moments.places.clear()
        self.moments.expect(moment, prefix)
        tasks = [
            asyncio.create_task(self._later(one, rng.uniform(0, 0.5), f"tenant{number}"))
            for one in outcome.streams
        ]
        if moment == "recomputing":
            await asyncio.sleep(rng.uniform(0.3, 0.8))
            await injector.strike(Fault("kill", "decode"), self._victim("decode", "", rng))
        if moment:
            outcome.reached = await self.moments.come()
        else:
            await asyncio.sleep(rng.uniform(0.05, 0.6))
        victim = self._victim(fault.victim, self.moments.request, rng)
        outcome.open = sum(one.answer.started and not one.answer.ended for one in outcome.streams)
        outcome.delivered = await injector.strike(fault, victim)
        await asyncio.gather(*tasks)
        for one in outcome.streams:
            want = self._answers[one.request.name]
            one.judge(want, self._found.model, router_lost=fault.breaks_streams)
        outcome.leaked = await self._leaked()
        return outcome

    def _drawn(self, rng: random.Random, prefix: str) -> list[Stream]:
        drawn = rng.sample(self.requests, rng.randint(*_STREAMS))
        return [
            Stream(
                f"{prefix}{one.name}",
                one,
                resumable=one.kind != "score" and rng.random() < 0.6,
                cancel_after=rng.randint(1, 300) if one.kind == "cancel" else 0,
            )
            for one in drawn
        ]

    async def _later(self, stream: Stream, wait_s: float, tenant: str) -> None:
        await asyncio.sleep(wait_s)
        await stream.run(self._client, tenant, self.moments.on_tokens)

    def _victim(self, role: str, request: str, rng: random.Random) -> Member | None:
        """A member of that role, that of the request if there is one; None for another victim."""
        if role not in PROCESSES or role == "redis":
            return None
        name = self.moments.places.get(request, {}).get(role, "")
        return self._found.named(name) or rng.choice(self._found.of(role))

    async def _leaked(self) -> str:
        """What is left although nothing runs; "" for nothing."""
        try:
            await all_idle(self._found, _IDLE_S)
        except TimeoutError:
            loads = {one.name: (await one.load())["load"] for one in self._found.living}
            return f"leaked: {loads}"
        for member in self._found.living:
            beside = Counter((await member.load())["tasks"]) - self._tasks[member.role]
            if over := {name: count for name, count in beside.items() if count > _TASKS_BESIDE}:
                return f"leaked tasks in {member.name}: {over}"
        return ""


def _silent(_name: str, _have: int, _want: int) -> None:
    """Nobody waits for a state."""
