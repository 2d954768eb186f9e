"""Chooses the pair of replicas for a request, and forecasts the request there. Pure.

Prefill goes where the prompt's first token is predicted first. The prediction counts the cached
prefix and the wait of the prompts that it passes. Decode goes to a replica with capacity, and there
to the fewest requests; the replica that was used longest ago wins a tie. A replica of role `both`
computes and decodes every request that it gets. A decode replica computes some prompts itself
(`local_prefill.py`).

Of replicas with stale state, two drawn by chance are compared (Mitzenmacher, 2001). Routers that
all believe the same old state would else all choose the same replica.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from cluster.placement import shared_cores
from cluster.placement.candidate import PlacementCandidate, PlacementQuery
from cluster.placement.cost_model import CostModel
from cluster.placement.decode_capacity import (
    DecodeCapacity,
    blocks_of,
    is_compatible,
    large_enough,
    with_partner,
)
from cluster.placement.local_prefill import LocalPrefill
from cluster.placement.prefill_backlog import PlacedPrompt, edf_prompts
from cluster.placement.prefix_affinity import KnownPrefixes
from cluster.placement.prompt_forecast import PromptForecaster
from cluster.placement.replica_load import LoadShare, ReplicaLoadTracker
from cluster.placement.resume_forecast import ResumeForecaster
from cluster.placement.types import Forecast, Pair, PlacementPlan, PlacementRequest
from cluster.replica_record import ReplicaRecord
from engine.types.urgency import Urgency

# Start value: how long a request stays on a decode replica, before one has ended there.
_STREAM_GUESS_S = 1.0


class Placement:
    """Plans pairs from the load of the replicas and from what work costs there.

    A decode replica beside a prefill pool computes at most `local_prefill_tokens` of a prompt (0:
    none), and only while it has capacity for the answer. `overcommit` and `batch_slots` are as in
    DecodeCapacity. At most `batch_prompts` prompts of the batch lane wait on a replica.
    """

    def __init__(
        self,
        local_prefill_tokens: int = 0,
        *,
        overcommit: float = 1.0,
        batch_slots: bool = True,
        batch_prompts: int = 64,
        costs: CostModel | None = None,
        load_tracker: ReplicaLoadTracker | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.costs = costs or CostModel()
        self.load_tracker = load_tracker or ReplicaLoadTracker()
        self._capacity = DecodeCapacity(
            self.load_tracker, overcommit, batch_slots=batch_slots, costs=self.costs
        )
        self._prefixes = KnownPrefixes()
        self._forecaster = PromptForecaster(self.costs, self.load_tracker, self._prefixes)
        self.resumes = ResumeForecaster(self._forecaster, self._capacity)
        self._local_prefill = LocalPrefill(local_prefill_tokens, self._forecaster, self._capacity)
        self._batch_prompts = batch_prompts
        self._chance = chance or random.Random()

    def plan(
        self,
        prefill: Sequence[ReplicaRecord],
        decode: Sequence[ReplicaRecord],
        request: PlacementRequest,
        now: float,
        *,
        stale: Collection[str] = (),
        margin_s: float = 0.0,
        least: Urgency = Urgency.PROMPTS,
    ) -> PlacementPlan:
        """The best pair: prefill can hold the prompt, and decode can hold prompt and answer.

        The first token is to come `margin_s` before it is due. `stale` names replicas whose state
        is old. Beside streams on a shared device the prompt has the `least` urgency or a higher
        one. Raises Unavailable where a pool is empty, and PromptTooLong where no pool is large
        enough.
        """
        sharing = _share_a_device(prefill, decode)
        urgency = self._urgency(decode, request, least) if sharing else Urgency.NONE
        query = PlacementQuery(request, now, margin_s, urgency)
        if request.scored_from is not None:
            return self._plan_scoring(prefill, query, stale)
        second = large_enough("decode", decode, request.most_tokens)
        # A replica of role `both` hands nothing over, so it must hold prompt and answer.
        able = [record for record in prefill if record.role != "both" or record in second]
        first = with_partner(large_enough("prefill", able, request.prompt_tokens), second)
        elsewhere = self._drawn(first, stale)
        shared = shared_cores.device_use(able, self._is_busy, least) if sharing else {}

        def best(query: PlacementQuery) -> PlacementCandidate:
            found = self._soonest(elsewhere, query)
            if found.record.role == "both":
                return found
            return self._local_prefill.best(second, query, found, shared) or found

        planned_once = urgency is Urgency.NONE
        found = best(query) if planned_once else shared_cores.least_urgent(best, query)
        here = found.record
        # Other choices are planned again, and go where there is capacity then.
        handed_over = any(record.role != "both" for record in first)
        others = second if handed_over else first
        if here.role == "both":
            return self._planned(found, here, others)
        if here.role == "decode":
            return self._planned(found, here, others, own_device=here.device not in shared)
        rated = self._drawn([record for record in second if is_compatible(here, record)], stale)
        decoder = self._capacity.least_loaded(rated, request, found.wait_s)
        return self._planned(found, decoder, others)

    def plan_resume(
        self,
        prefill: Sequence[ReplicaRecord],
        decode: Sequence[ReplicaRecord],
        request: PlacementRequest,
        now: float,
    ) -> PlacementPlan:
        """The plan for an answer after a loss: one decode replica computes prompt and output."""
        able = large_enough("decode", decode, request.most_tokens)
        chosen = self.resumes.soonest(able, request, now)
        urgency = Urgency.PROMPTS if _share_a_device(prefill, decode) else Urgency.NONE
        query = PlacementQuery(request, now, 0.0, urgency)
        return self._planned(self._forecaster.candidate(chosen, query), chosen, able)

    def left(self, replicas: Sequence[ReplicaRecord], request: PlacementRequest) -> int:
        """The prompt tokens to compute on the replica that has most of the prompt cached."""
        cached = (self._forecaster.cached(record, request) for record in replicas)
        return request.prompt_tokens - max(cached, default=0)

    def learn(self, replica: ReplicaRecord, digests: Sequence[bytes]) -> None:
        """Note that the replica has these blocks, or computes them."""
        self._prefixes.learn(replica.id, digests, replica.load.blocks_total)

    def add_load(
        self, plan: PlacementPlan, request: PlacementRequest, now: float
    ) -> tuple[LoadShare, LoadShare]:
        """Count one choice on its pair: until its first token, and until its end."""
        pair = plan.pair
        prompt = PlacedPrompt(
            request.prompt_tokens - pair.cached_tokens,
            pair.cached_tokens,
            plan.forecast.deadline_s,
            request.batch,
            plan.forecast.urgency,
        )
        prefill = self.load_tracker.prompt(pair.prefill.id, prompt, now)
        if pair.prefill_only:
            return prefill, LoadShare(lambda: None)
        blocks = blocks_of(pair.decode, request)
        return prefill, self.load_tracker.request(pair.decode.id, blocks, request.itl_s)

    def computed(
        self,
        replica: str,
        prompt_tokens: int,
        cached: int,
        prefill_s: float,
        now: float,
        urgency: Urgency = Urgency.NONE,
        passes: float = 0.0,
    ) -> None:
        """Learn from a prompt's first token, which came now, before its load share is released.

        `urgency` is as in its forecast, and `passes` as in `PrefillCost.learn`.
        """
        busy_s, missing = self.load_tracker.backlog(replica).busy_s(), prompt_tokens - cached
        cost = self.costs.prefill(replica)
        cost.learn(missing, cached, prefill_s, now, busy_s, urgency, passes)

    def forget(self, living: Iterable[str]) -> None:
        """Drop what is known of replicas that are gone."""
        living = set(living)
        self._prefixes.forget(living)
        self.costs.forget(living)
        self.load_tracker.forget(living)

    def queue_s(self, replica: str, now: float) -> float:
        """The seconds of computing of the prompts from here that wait on that replica."""
        backlog = self.load_tracker.backlog(replica)
        waiting = edf_prompts(backlog, self.costs.prefill(replica), now)
        return sum(prompt.length for prompt in waiting)

    def _plan_scoring(
        self, prefill: Sequence[ReplicaRecord], query: PlacementQuery, stale: Collection[str]
    ) -> PlacementPlan:
        """The replica that computes the prompt soonest, alone."""
        able = self._drawn(large_enough("prefill", prefill, query.request.prompt_tokens), stale)
        best = self._soonest(able, query)
        if best.record.role == "both":
            return self._planned(best, best.record, [best.record])
        pair = Pair(best.record, best.record, best.cached, prefill_only=True)
        return PlacementPlan(pair, self._forecast(best)())

    def _drawn(
        self, records: Sequence[ReplicaRecord], stale: Collection[str]
    ) -> Sequence[ReplicaRecord]:
        """All replicas, or two drawn by chance where the state of one is old."""
        if len(records) > 2 and any(record.id in stale for record in records):
            return self._chance.sample(records, 2)
        return records

    def _urgency(
        self, decode: Sequence[ReplicaRecord], request: PlacementRequest, least: Urgency
    ) -> Urgency:
        """The urgency of a prompt that comes now, on a shared device."""
        if not any(map(self.load_tracker.requests, decode)):
            return Urgency.NONE
        return Urgency.PROMPTS if request.batch else least

    def _is_busy(self, record: ReplicaRecord) -> bool:
        return self.load_tracker.backlog(record.id).is_busy(record.load)

    def _soonest(
        self, records: Sequence[ReplicaRecord], query: PlacementQuery
    ) -> PlacementCandidate:
        """The best candidate of replicas that can compute the prompt.

        A replica of role `both` must also have capacity for the answer. If no replica has, it is
        chosen where the prompt is on time.
        """

        def order(one: PlacementCandidate) -> tuple[bool, float, int, int]:
            record, full = one.record, False
            if record.role == "both":
                feasible = one.forecast.feasible
                full = not feasible or self._capacity.is_full(record, query.request, one.wait_s)
            return full, one.cost_s, *self.load_tracker.rank(record)

        return min((self._forecaster.candidate(record, query) for record in records), key=order)

    def _planned(
        self,
        found: PlacementCandidate,
        decode: ReplicaRecord,
        others: Sequence[ReplicaRecord],
        *,
        own_device: bool = False,
    ) -> PlacementPlan:
        """The plan with the first choice on that pair; all choices may go to `others`."""
        capacity, request = self._capacity, found.query.request
        requests = self.load_tracker.requests(decode)
        alone = request.choices == 1 or capacity.is_full(decode, request, found.wait_s)
        judged = [decode] if alone else others
        stream_s = self.costs.stream_s(decode.id) or _STREAM_GUESS_S
        forecast = self._forecast(found)(
            step_s=self.costs.step_s(decode.id, requests + -(-request.choices // len(others))),
            itl_s=min(request.itl_s, self.load_tracker.itl_s(decode.id)),
            blocks_shortfall=capacity.blocks_shortfall(judged, request),
            slots_shortfall=capacity.slots_shortfall(judged, request, found.wait_s),
            requests=requests,
            interval_s=stream_s / max(1, requests),
        )
        return PlacementPlan(
            Pair(found.record, decode, found.cached, own_device=own_device), forecast
        )

    def _forecast(self, found: PlacementCandidate) -> Callable[..., Forecast]:
        """Makes the forecast of the candidate's prompt, with the fields about its decode."""
        forecast, request = found.forecast, found.query.request
        return partial(
            Forecast,
            ttft_s=forecast.ends_s + self.costs.flush_s - request.arrived_s,
            deadline_s=found.deadline_s,
            alone_s=found.alone_s,
            queued_s=found.added_s,
            work_s=forecast.work_s,
            feasible=forecast.feasible,
            urgency=found.urgency,
            prompts_shortfall=self._prompts_shortfall(found.record, request),
            learned=self.costs.prefill(found.record.id).learned,
        )

    def _prompts_shortfall(self, record: ReplicaRecord, request: PlacementRequest) -> int:
        """The prompts of the batch lane beyond the number that may wait there from here."""
        if not request.batch:
            return 0
        waiting = self.load_tracker.backlog(record.id).batch_prompts + request.choices
        return max(0, waiting - max(self._batch_prompts, request.choices))


def _share_a_device(prefill: Iterable[ReplicaRecord], decode: Iterable[ReplicaRecord]) -> bool:
    """Whether prompts may be computed where streams run.

    Replicas that name no device count as sharing one, because nothing says that they do not.
    """
    devices = {record.device for record in decode}
    return any(record.role == "both" or record.device in devices for record in prefill)
