"""A burst on two devices of their own, on paper: passes with a floor, and a virtual clock.

The prefill device computes passes of a real scheduler. A pass takes `FLOOR_S` at least, and
otherwise as long as its tokens take. The decode device has room for all streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.admission.early_refusal import ArrivingRequest, SizeEstimate
from cluster.placement.types import PlacementPlan, PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.kv.block_pool import BlockPool
from engine.scheduling.pass_cost import PassTiming
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from prefill_pool.scheduler import PrefillScheduler
from tests.cluster.admission.burst import Burst, Call

TOKENS_PER_S, FLOOR_S = 50_000.0, 0.0095
POLL_S = 0.01
CHUNK, BLOCKS = 2048, 100_000
# What a warm-up sees of such a device, with passes of 16 and of 2,048 tokens.
WARM_UP = PassTiming.of_two((16, FLOOR_S), (CHUNK, CHUNK / TOKENS_PER_S))


@dataclass
class DeviceBurst(Burst):
    """`count` prompts of `length` tokens come at random times within `within_s`.

    The router refuses before it tokenises, too, as `AdmissionQueue` does. `warmed` says that passes
    were timed before the first prompt. `reports_ends` says that the replica reports at the end of a
    pass, and not by time alone.
    """

    tick_s: float = 0.0005
    budget_s: float = 0.5
    step_s: tuple[float, float] = (0.005, 0.00005)
    count: int = 300
    length: int = 544
    within_s: float = 3.0
    warmed: bool = True
    reports_ends: bool = True
    passes: int = 0
    _spans: list[Span] = field(default_factory=list)
    _pass_ends_s: float = 0.0
    _reported_s: float = 0.0
    _due: bool = False
    _polled_s: float = float("-inf")

    def __post_init__(self) -> None:
        super().__post_init__()
        order = PromptOrder(CHUNK, shared_cores=False)
        self.scheduler = PrefillScheduler(
            BlockPool(BLOCKS), order, block_size=16, max_waiting=1000, parked_fraction=1.0
        )
        if self.warmed:
            order.cost.start_with(WARM_UP)
        self.computing: dict[str, Call] = {}
        self.sizes = SizeEstimate()
        self.report()

    def _arrivals(self) -> list[Call]:
        times = sorted(self.chance.uniform(0, self.within_s) for _ in range(self.count))
        return [Call(number, at_s, self.length, at_s) for number, at_s in enumerate(times)]

    def records(self) -> tuple[ReplicaRecord, ReplicaRecord]:
        load = ReplicaLoad(blocks_total=BLOCKS, block_size=16)
        return (
            ReplicaRecord("p0", "prefill", "", 1, load=load, device="gpu-0"),
            ReplicaRecord("d0", "decode", "", 1, load=load, device="gpu-1"),
        )

    def arrive(self, call: Call) -> None:
        arrival = ArrivingRequest(call.prompt, self.now, self.budget_s, call.number, "one")
        waiting_s = sum(one.alone_s or 0.0 for one in self.waiting)
        ahead = self.sizes.ahead(call.prompt, waiting_s, 0.0, self.now)
        if self.admission.refuse_early(arrival, ahead, self.now) is None:
            super().arrive(call)
            self._polled_s = float("-inf")
        else:
            call.refused += 1

    def poll(self) -> None:
        if self.now - self._polled_s >= POLL_S:
            self._polled_s = self.now
            super().poll()

    def _note_plan(self, request: PlacementRequest, plan: PlacementPlan) -> None:
        one = replace(request, size=request.prompt_tokens)
        self.sizes.learn(one, request.prompt_tokens, plan.forecast, self.now, own=False)

    def _prefill(self) -> None:
        self._submit()
        if self._spans and self.now >= self._pass_ends_s:
            self._end_pass()
        if not self._spans:
            self._spans = self.scheduler.schedule(self.now)
            tokens = sum(span.count for span in self._spans)
            self._pass_ends_s = self.now + max(FLOOR_S, tokens / TOKENS_PER_S)
            for span in self._spans:
                call = self.computing[span.sequence.owner]
                call.began_s = self.now if call.began_s is None else call.began_s
        self._tell()

    def _submit(self) -> None:
        for call in self.prompts:
            name = f"{call.number}"
            if name not in self.computing:
                self.computing[name] = call
                sampling = SamplingParams(max_tokens=32, seed=0)
                left_s = call.deadline_s - self.now
                one = Sequence(name, [1] * call.prompt, call.prompt, sampling, ttft_budget_s=left_s)
                self.scheduler.submit(one, self.now)

    def _end_pass(self) -> None:
        tokens = sum(span.count for span in self._spans)
        self.scheduler.advanced(self._spans, max(FLOOR_S, tokens / TOKENS_PER_S))
        whole = self.scheduler.complete(self._spans)
        self.passes, self._spans, self._due = self.passes + 1, [], self.reports_ends
        for sequence in whole:
            call = self.computing[sequence.owner]
            call.remaining = 0
            self.scheduler.remove(sequence.owner)
            self._answer(call, sequence.passes)

    def _answer(self, call: Call, passes: float) -> None:
        self.prompts.remove(call)
        self.streams.append(call)
        call.first_s = self.now
        took_s = self.now - call.began_s
        self.placement.computed(
            "p0", call.prompt, 0, took_s, self.now, call.urgency, passes if self.warmed else 0.0
        )
        self.placement.costs.learn_flush(0.0)
        if call.learned:
            self.admission.learn(self.now > call.deadline_s, self.budget_s)
        call.shares[0].release()

    def _tell(self) -> None:
        since_s = self.now - self._reported_s
        if since_s >= 0.05 or (self._due and since_s >= 0.02):
            self.report()

    def report(self) -> None:
        self._due, self._reported_s = False, self.now
        tracker, scheduler = self.placement.load_tracker, self.scheduler
        passes = scheduler.order.pass_costs
        if passes is not None and self.warmed:
            self.placement.costs.prefill("p0").report(passes)
        load = ReplicaLoad(prompt_tokens_due=scheduler.tokens_due, waiting=len(self.prompts))
        tracker.report("p0", load, self.now)
        batch = len(self.streams)
        if batch:
            step_s = self.step_s[0] + self.step_s[1] * batch
            self.placement.costs.learn_step("d0", batch, step_s)
        tracker.report("d0", ReplicaLoad(running=batch + len(self.prompts)), self.now)

    @property
    def refused(self) -> int:
        """How many calls were refused."""
        return sum(call.refused > 0 for call in self.calls)

    @property
    def late(self) -> int:
        """How many admitted calls had their first token too late."""
        firsts = [call for call in self.calls if call.first_s is not None]
        return sum(call.first_s - call.arrival_s > self.budget_s for call in firsts)
