"""A small simulator of a burst on two pools: a prefill and a decode replica in ticks of 5 ms.

The policies are those of the router. The replicas are simulated and have a queue of their own, by
earliest deadline first, so that the simulator can contradict the policy. The speeds were measured
with one thread each on two cores, for a model of 135 M parameters. A prompt beside streams is
computed at `SHARES` of that speed, more of it if the streams wait longer for it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cluster.admission.offered_load import OfferedLoad
from cluster.admission.policy import Admission, Admit, Refuse, Wait
from cluster.placement.placement import Placement
from cluster.placement.replica_load import LoadShare
from cluster.placement.types import PlacementPlan, PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.types.urgency import Urgency

TICK_S = 0.005
BUDGET_S = 1.0
ITL_S = 0.06
ANSWER = 32
SHARES = {Urgency.PROMPTS: 0.6, Urgency.PRESSED: 0.8, Urgency.URGENT: 1.0}
BLOCKS = 4096


@dataclass(eq=False)
class Call:
    """A request on its way; `remaining` prompt tokens, then `tokens` of its answer."""

    number: int
    arrival_s: float
    prompt: int
    first_arrival_s: float
    remaining: float = 0.0
    tokens: int = 0
    first_s: float | None = None
    done_s: float | None = None
    began_s: float | None = None
    promised: bool = False
    refused: int = 0
    predicted_s: float = 0.0
    alone_s: float | None = None
    waits_for: str = ""
    feasible: bool = True
    deadline_s: float = 0.0
    urgency: Urgency = Urgency.NONE
    learned: bool = False
    shares: tuple[LoadShare, LoadShare] | None = None

    @property
    def in_goals(self) -> bool:
        if self.first_s is None or self.done_s is None:
            return False
        itl_s = (self.done_s - self.first_s) / (ANSWER - 1)
        return self.first_s - self.arrival_s <= BUDGET_S and itl_s <= ITL_S


@dataclass
class Burst:
    """Arrivals and two replicas; the policy decides, or all are admitted (`admit_all`)."""

    prefill_rate: float = 1300.0
    step_s: tuple[float, float] = (0.010, 0.0012)
    seed: int = 0
    calm_rate: float = 1.1
    burst_rate: float = 11.0
    admit_all: bool = False
    returning: bool = False
    tick_s: float = TICK_S
    budget_s: float = BUDGET_S
    now: float = 0.0
    named_s: list[float] = field(default_factory=list)
    returns: list[bool] = field(default_factory=list)
    prompts: list[Call] = field(default_factory=list)
    streams: list[Call] = field(default_factory=list)
    waiting: list[Call] = field(default_factory=list)
    finished: list[Call] = field(default_factory=list)
    _step_done_s: float = 0.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.placement = Placement(overcommit=4.0)
        self.admission = Admission()
        self.offered = OfferedLoad()
        self.arrivals = sorted(self._arrivals(), key=lambda call: call.arrival_s)
        self.calls = list(self.arrivals)

    def _arrivals(self) -> list[Call]:
        calls, at_s = [], 0.0
        while at_s < 60:
            rate = self.burst_rate if 25 <= at_s < 30 else self.calm_rate
            at_s += self.chance.expovariate(rate)
            prompt = self.chance.randint(64, 1024)
            calls.append(Call(len(calls), at_s, prompt, at_s))
        return calls

    def run(self) -> Burst:
        """Until everything has ended."""
        reported_s = 0.0
        while self.arrivals or self.prompts or self.streams or self.waiting:
            self.now += self.tick_s
            while self.arrivals and self.arrivals[0].arrival_s <= self.now:
                self.arrive(self.arrivals.pop(0))
            self.poll()
            self._prefill()
            self._decode()
            if self.now - reported_s >= 0.05:
                reported_s = self.now
                self.report()
        return self

    def records(self) -> tuple[ReplicaRecord, ReplicaRecord]:
        load = ReplicaLoad(blocks_total=BLOCKS, block_size=16)
        return (
            ReplicaRecord("p0", "prefill", "", 1, load=load),
            ReplicaRecord("d0", "decode", "", 1, load=load),
        )

    def _request(self, call: Call) -> PlacementRequest:
        return PlacementRequest(
            call.prompt,
            call.prompt + ANSWER,
            arrived_s=call.arrival_s,
            budget_s=self.budget_s,
            itl_s=ITL_S,
            key=call.number,
        )

    def arrive(self, call: Call) -> None:
        call.promised = self.admission.claim_retry(self._request(call), self.now)
        self.waiting.append(call)

    def poll(self) -> None:
        ahead_s = 0.0
        for call in sorted(self.waiting, key=lambda call: (not call.promised, call.prompt)):
            ahead_s += self.decide(call, ahead_s)

    def decide(self, call: Call, ahead_s: float) -> float:
        """The seconds that it takes of the requests behind it."""
        request = self._request(call)
        prefill, decode = self.records()
        plan = self.placement.plan(
            [prefill],
            [decode],
            request,
            self.now,
            margin_s=self.admission.margin_s(self.budget_s),
            least=self._least_urgency(),
        )
        self._note_plan(request, plan)
        if call.alone_s is None:
            self.offered.add(plan.forecast.added_s, self.now, self.budget_s)
        call.alone_s, call.feasible = plan.forecast.added_s, plan.forecast.feasible
        verdict = self.admission.judge(
            request, plan.forecast, self.now, promised=call.promised, ahead_s=ahead_s
        )
        call.waits_for = verdict.reason if isinstance(verdict, Wait) else ""
        if call.promised and not isinstance(verdict, Wait):
            call.promised = False
            self.admission.settle_retry(request)
        if self.admit_all or isinstance(verdict, Admit):
            self.waiting.remove(call)
            if call.refused:
                self.returns.append(True)
            call.shares = self.placement.add_load(plan, request, self.now)
            call.predicted_s, call.remaining = plan.forecast.ttft_s, call.prompt
            call.deadline_s, call.urgency = plan.forecast.deadline_s, plan.forecast.urgency
            call.learned = plan.forecast.learned
            self.prompts.append(call)
        elif isinstance(verdict, Refuse):
            assert self.now - call.arrival_s <= self.budget_s / 2 + self.tick_s
            self.waiting.remove(call)
            if call.refused:
                self.returns.append(False)
            self.named_s.append(verdict.retry_after_s)
            call.refused += 1
            if self.returning:
                call.arrival_s = self.now + verdict.retry_after_s
                self.arrivals.append(call)
                self.arrivals.sort(key=lambda call: call.arrival_s)
        return plan.forecast.added_s if call in self.waiting else 0.0

    def _note_plan(self, request: PlacementRequest, plan: PlacementPlan) -> None:
        """Learn from a plan; nothing here."""

    def _least_urgency(self) -> Urgency:
        if self.offered.overloaded(self.now):
            return Urgency.URGENT
        waiting = [call for call in self.waiting if call.waits_for == "ttft"]
        urgencies = (Urgency.PRESSED if call.feasible else Urgency.URGENT for call in waiting)
        return max(urgencies, default=Urgency.PROMPTS)

    def _rate(self) -> float:
        """Prompt tokens a second: who is in urgency makes streams wait for all as they may."""
        if not self.streams:
            return self.prefill_rate
        most = max((call.urgency for call in self.prompts), default=Urgency.PROMPTS)
        return self.prefill_rate * SHARES[max(most, Urgency.PROMPTS)]

    def _prefill(self) -> None:
        """The replica's own queue, which knows nothing of the router's policy."""
        budget = self._rate() * TICK_S
        while self.prompts and budget > 0:
            call = self._next_prompt()
            if call.began_s is None:
                call.began_s = self.now
            done = min(budget, call.remaining)
            call.remaining -= done
            budget -= done
            if call.remaining <= 0:
                self._first(call)

    def _next_prompt(self) -> Call:
        """Of the prompts that can still be in time the one that is due first; else the shortest."""
        rate = self._rate()
        in_time = [
            call for call in self.prompts if self.now + call.remaining / rate <= call.deadline_s
        ]
        if in_time:
            return min(in_time, key=lambda call: call.deadline_s)
        return min(self.prompts, key=lambda call: call.remaining)

    def _first(self, call: Call) -> None:
        self.prompts.remove(call)
        self.streams.append(call)
        call.first_s = self.now
        took_s = self.now - call.began_s
        self.placement.computed("p0", call.prompt, 0, took_s, self.now, call.urgency)
        self.placement.costs.learn_flush(0.0)
        if call.learned:
            self.admission.learn(self.now > call.deadline_s, self.budget_s)
        call.shares[0].release()

    def _decode(self) -> None:
        if self.now < self._step_done_s or not self.streams:
            return
        for call in list(self.streams):
            call.tokens += 1
            if call.tokens == ANSWER - 1:
                self.streams.remove(call)
                call.done_s = self.now
                call.shares[1].release()
                self.finished.append(call)
                self.placement.costs.learn_stream("d0", self.now - call.arrival_s)
        took_s = self.step_s[0] + self.step_s[1] * len(self.streams)
        self._step_done_s = self.now + took_s

    def report(self) -> None:
        tracker, batch = self.placement.load_tracker, len(self.streams)
        step_s = self.step_s[0] + self.step_s[1] * batch if batch else 0.0
        tokens = round(sum(call.remaining for call in self.prompts))
        self.placement.costs.learn_step("d0", batch, step_s)
        tracker.report(
            "p0", ReplicaLoad(prompt_tokens_due=tokens, waiting=len(self.prompts)), self.now
        )
        running = len(self.prompts) + batch
        promised = sum(call.prompt // 16 + 3 for call in (*self.prompts, *self.streams))
        tracker.report("d0", ReplicaLoad(running=running, blocks_promised=promised), self.now)

    @property
    def in_goals(self) -> int:
        """The goodput: requests within both budgets, without those that came back."""
        return sum(call.in_goals and not call.refused for call in self.finished)
