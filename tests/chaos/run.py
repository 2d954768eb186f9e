"""One run: requests begin, a fault comes at a drawn moment, and everything is checked."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.cancels import WAYS
from tests.chaos.faults import Fault
from tests.chaos.load import LATE_TOKENS, Answer, Request, Stream, requests
from tests.chaos.target import Target
from tests.chaos.web_clients import Clients, FrontEnd

_MOMENT_S = 4.0
# Of the faults so many come at a state of a request, the others at any time.
_AT_A_STATE = 0.7
# Before a fault at any time, and before the loss of a replica for a fault while its streams are
# computed again.
_PAUSES_S = {"": (0.05, 0.6), "recomputing": (0.3, 0.8)}
_DECODING, _LAST = 8, 3
_STREAMS = (5, 9)
_CALM_TRIES, _AT_ONCE = 5, 6
_FRONT_ENDS: tuple[FrontEnd, ...] = ("grpc", "grpc", "http", "websocket")


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
    took_s: float = 0.0

    @property
    def bad(self) -> list[str]:
        """What must not be."""
        found = [
            f"{one.name} over {one.front_end} is {one.fate}: {one.why}"
            + (" (resumable)" if one.resumable else "")
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
    """Runs on one cluster, which lives on from run to run. Of each kind of request are `each`."""

    def __init__(self, target: Target, clients: Clients, seed: int, each: int = 4) -> None:
        self._target = target
        self._clients = clients
        self._seed = seed
        self.requests = requests(seed, each)
        self._answers = dict[str, Answer]()
        self.moments = Moments()
        target.listen(self.moments.on_state)

    async def prepare(self) -> None:
        """Compute the undisturbed answers, and note what the calm cluster holds.

        Requests whose answer depends on its company, by rounding, are left out.
        """
        first = await self._calm(self.requests)
        again = await self._calm(sorted(self.requests, key=lambda one: len(one.prompt)))
        self.requests = [one for one in self.requests if again[one.name].ids == first[one.name].ids]
        self._answers = first
        await self._target.calm()

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
                await asyncio.gather(*(one.run(self._clients, "calm", _silent) for one in streams))
                answers |= {one.request.name: one.answer for one in streams if one.error is None}
        if missing := [one.name for one in some if one.name not in answers]:
            raise RuntimeError(f"the calm cluster did not answer {missing}")
        return answers

    async def run(self, number: int) -> Outcome:
        """One fault among requests, drawn by the number of the run."""
        began_s = time.monotonic()
        rng = random.Random(f"{self._seed}/{number}")
        fault = self._target.faults[number % len(self._target.faults)]
        moment = rng.choice(self._target.moments) if rng.random() < _AT_A_STATE else ""
        outcome, prefix = Outcome(number, fault, moment), f"run{number}-"
        outcome.streams = self._drawn(rng, prefix)
        self.moments.places.clear()
        self.moments.expect(moment, prefix)
        tasks = [
            asyncio.create_task(self._later(one, rng.uniform(0, 0.5), f"tenant{number}"))
            for one in outcome.streams
        ]
        if pause_s := _PAUSES_S.get(moment):
            await asyncio.sleep(rng.uniform(*pause_s))
        if moment == "recomputing":
            await self._target.strike(Fault("kill", "decode"), {}, rng)
        if moment:
            outcome.reached = await self.moments.come()
        outcome.open = sum(one.answer.started and not one.answer.ended for one in outcome.streams)
        places = self.moments.places.get(self.moments.request, {})
        outcome.delivered = await self._target.strike(fault, places, rng)
        await asyncio.gather(*tasks)
        for one in outcome.streams:
            one.judge(self._answers[one.request.name], self._target.model, fault)
        outcome.leaked = await self._target.leaked()
        outcome.took_s = time.monotonic() - began_s
        return outcome

    def _drawn(self, rng: random.Random, prefix: str) -> list[Stream]:
        drawn = rng.sample(self.requests, rng.randint(*_STREAMS))
        cancels = [one for one in self.requests if one.kind == "cancel"]
        if cancels and not any(one in cancels for one in drawn):
            drawn[0] = rng.choice(cancels)
        return [
            Stream(
                f"{prefix}{one.name}",
                one,
                resumable=one.kind != "score" and rng.random() < 0.6,
                cancel_after=_cancel_after(one, rng),
                cancel_way=rng.choice(WAYS),
                front_end="grpc" if one.kind == "score" else rng.choice(_FRONT_ENDS),
            )
            for one in drawn
        ]

    async def _later(self, stream: Stream, wait_s: float, tenant: str) -> None:
        await asyncio.sleep(wait_s)
        await stream.run(self._clients, tenant, self.moments.on_tokens)


def _cancel_after(request: Request, rng: random.Random) -> int:
    """The tokens after which a request is cancelled, early or at about its end; 0: it is not."""
    if request.kind != "cancel":
        return 0
    late = request.options["max_tokens"] == LATE_TOKENS
    return rng.randint(LATE_TOKENS - 10, LATE_TOKENS) if late else rng.randint(1, 300)


def _silent(_name: str, _have: int, _want: int) -> None:
    """Nobody waits for a state."""
