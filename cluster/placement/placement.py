"""Which pair of replicas serves a request, and what that would mean for it. Pure.

Prefill goes where the prompt's first token is predicted first, what is cached there and the wait
of those that it passes taken into account; where the same replica decodes, its answer must have
room, too, if it has anywhere. Decode goes where there is room, and the fewest requests are; the
replica that was used longest ago wins a tie.

A decode replica computes some prompts itself, beside its streams
(`cluster/placement/local_prefill.py`), one of role `both` every prompt that it is given.

Of replicas whose state is not known, two drawn by chance are compared (Mitzenmacher, 2001), as
routers that all believe the same old state would all choose the same replica.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.placement.cost_model import CostModel
from cluster.placement.decode_capacity import (
    DecodeCapacity,
    blocks_of,
    is_compatible,
    large_enough,
    with_partner,
)
from cluster.placement.edf_forecast import EdfPrompt, forecast_prompt
from cluster.placement.local_prefill import Computing, Device, is_lent
from cluster.placement.prefill_backlog import PlacedPrompt, edf_prompts
from cluster.placement.prefix_affinity import KnownPrefixes
from cluster.placement.replica_load import LoadShare, ReplicaLoadTracker
from cluster.placement.types import Forecast, Pair, PlacementPlan, PlacementRequest
from cluster.replica_record import ReplicaRecord
from engine.types.urgency import Urgency, raised

# A prompt that needs more than its budget even alone is due at this many times what it needs.
_ALONE = 1.2
# Of a token gap, the least share that a decode replica is taken to have for prompts.
_LEAST_SLACK = 0.25


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked about, and when; `urgency` as in the forecast."""

    ask: PlacementRequest
    now: float
    margin_s: float
    urgency: Urgency


class Placement:
    """Plans pairs from what is held and what it costs.

    A decode replica beside a prefill pool computes at most `local_prefill_tokens` of a prompt (0:
    none), and only while it has fewer than `decode_batch` requests. `overcommit` and `batch_slots`
    are as in DecodeCapacity. At most `batch_prompts` prompts of the batch lane wait on a replica.
    """

    def __init__(
        self,
        local_prefill_tokens: int = 0,
        decode_batch: int = 0,
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
        self._capacity = DecodeCapacity(self.load_tracker, overcommit, batch_slots=batch_slots)
        self._batch_prompts = batch_prompts
        self._local_prefill_tokens = local_prefill_tokens
        self._decode_batch = decode_batch
        self._chance = chance or random.Random()
        self._known = KnownPrefixes()

    def plan(
        self,
        prefill: Sequence[ReplicaRecord],
        decode: Sequence[ReplicaRecord],
        ask: PlacementRequest,
        now: float,
        *,
        stale: Collection[str] = (),
        margin_s: float = 0.0,
        least: Urgency = Urgency.PROMPTS,
    ) -> PlacementPlan:
        """The best pair whose pools can hold the prompt, and prompt with answer.

        First tokens are to be `margin_s` before they are due. `stale` names replicas whose state
        is old. It is computed at the `least` urgency at least, where there are streams, and in more
        urgency where only so it is in time. Unavailable where a pool is empty, PromptTooLong where
        no pool is large enough.
        """
        asked = _Asked(ask, now, margin_s, self._urgency(decode, ask, least))
        if ask.scored_from is not None:
            return self._plan_scoring(prefill, asked, stale)
        second = large_enough("decode", decode, ask.most_tokens)
        # One of role `both` hands nothing over, so it must hold prompt and answer.
        able = [record for record in prefill if record.role != "both" or record in second]
        first = with_partner(large_enough("prefill", able, ask.prompt_tokens), second)
        elsewhere, devices = self._drawn(first, stale), self._devices(able, least)

        def best(asked: _Asked) -> Computing:
            found = self._soonest(elsewhere, asked)
            if found.record.role == "both":
                return found
            return self._local(second, asked, found, devices) or found

        found = _hurried(best, asked)
        here = found.record
        # Other choices are planned anew, and go wherever there is room then.
        handed_over = any(record.role != "both" for record in first)
        others = second if handed_over else first
        if here.role == "both":
            return self._planned(found, here, others, asked)
        if here.role == "decode":
            return self._planned(found, here, others, asked, own_device=here.device not in devices)
        rated = self._drawn([record for record in second if is_compatible(here, record)], stale)
        chosen = min(rated, key=lambda one: self._room(one, ask))
        return self._planned(found, chosen, others, asked)

    def plan_resume(
        self, decode: Sequence[ReplicaRecord], ask: PlacementRequest, now: float
    ) -> PlacementPlan:
        """Where an answer goes on that was begun elsewhere: one decode replica computes it all."""
        able = large_enough("decode", decode, ask.most_tokens)
        chosen = min(able, key=lambda record: self._room(record, ask))
        asked = _Asked(ask, now, 0.0, Urgency.PROMPTS)
        return self._planned(self._computing(chosen, asked), chosen, able, asked)

    def left(self, replicas: Sequence[ReplicaRecord], ask: PlacementRequest) -> int:
        """Tokens of the prompt to be computed on the one that has most of it cached."""
        cached = max((self._cached(record, ask) for record in replicas), default=0)
        return ask.prompt_tokens - cached

    def learn(self, replica: ReplicaRecord, digests: Sequence[bytes]) -> None:
        """The replica computes these blocks, or has them."""
        self._known.learn(replica.id, digests, replica.load.blocks_total)

    def add_load(
        self, plan: PlacementPlan, ask: PlacementRequest, now: float
    ) -> tuple[LoadShare, LoadShare]:
        """Count one choice against its pair: until its first token, and until its end."""
        pair = plan.pair
        prompt = PlacedPrompt(
            ask.prompt_tokens - pair.cached_tokens,
            pair.cached_tokens,
            plan.forecast.deadline_s,
            ask.batch,
            plan.forecast.urgency,
        )
        held = self.load_tracker.prompt(pair.prefill.id, prompt, now)
        if pair.prefill_only:
            return held, LoadShare(_nothing)
        blocks = blocks_of(pair.decode, ask)
        return held, self.load_tracker.request(pair.decode.id, blocks, ask.itl_s)

    def computed(
        self,
        replica: str,
        prompt_tokens: int,
        cached: int,
        prefill_s: float,
        now: float,
        urgency: Urgency = Urgency.NONE,
    ) -> None:
        """The first token came now of a prompt that is still held; `urgency` as in its forecast."""
        busy_s, missing = self.load_tracker.backlog(replica).busy_s(), prompt_tokens - cached
        cost = self.costs.prefill(replica)
        cost.learn(missing, cached, prefill_s, now, busy_s, urgency)

    def forget(self, living: Iterable[str]) -> None:
        """Drop what is known of replicas that are gone."""
        living = set(living)
        self._known.forget(living)
        self.costs.forget(living)
        self.load_tracker.forget(living)

    def queue_s(self, replica: str, now: float) -> float:
        """Seconds of prompts from here that wait on that replica."""
        waiting = edf_prompts(self.load_tracker.backlog(replica), self.costs.prefill(replica), now)
        return sum(prompt.length for prompt in waiting)

    def _plan_scoring(
        self, prefill: Sequence[ReplicaRecord], asked: _Asked, stale: Collection[str]
    ) -> PlacementPlan:
        """The replica that computes the prompt soonest, alone."""
        able = self._drawn(large_enough("prefill", prefill, asked.ask.prompt_tokens), stale)
        best = self._soonest(able, asked)
        if best.record.role == "both":
            return self._planned(best, best.record, [best.record], asked)
        pair = Pair(best.record, best.record, best.cached, prefill_only=True)
        return PlacementPlan(pair, self._forecast(best, asked))

    def _drawn(
        self, records: Sequence[ReplicaRecord], stale: Collection[str]
    ) -> Sequence[ReplicaRecord]:
        """All of them, or two by chance where the state of one is old."""
        if len(records) > 2 and any(record.id in stale for record in records):
            return self._chance.sample(records, 2)
        return records

    def _urgency(
        self, decode: Sequence[ReplicaRecord], ask: PlacementRequest, least: Urgency
    ) -> Urgency:
        """Of a prompt that comes now."""
        if not any(map(self.load_tracker.requests, decode)):
            return Urgency.NONE
        return Urgency.PROMPTS if ask.batch else least

    def _soonest(self, records: Sequence[ReplicaRecord], asked: _Asked) -> Computing:
        """The best place for it, of replicas that can compute it.

        One of role `both` is so where its answer has room, too; else only where there is no other
        that has, and where it is in time.
        """

        def order(one: Computing) -> tuple[bool, float, int, int]:
            record, full = one.record, False
            if record.role == "both":
                full = not one.forecast.feasible or self._capacity.is_full(record, asked.ask)
            return full, one.cost_s, *self._used(record)

        return min((self._computing(record, asked) for record in records), key=order)

    def _computing(self, record: ReplicaRecord, asked: _Asked, slower: float = 1.0) -> Computing:
        """What becomes of the prompt on this replica, `slower` than its costs say."""
        ask, cost, queue = (
            asked.ask,
            self.costs.prefill(record.id),
            self.load_tracker.backlog(record.id),
        )
        urgency = asked.urgency if ask.batch else raised(asked.urgency, queue.urgency, behind=True)
        cached = self._cached(record, ask)
        missing = ask.prompt_tokens - cached
        one_s = cost.seconds(missing, cached, urgency)
        alone_s = ask.choices * slower * one_s
        flush_s = self.costs.flush_s
        due_s = ask.arrived_s + max(ask.budget_s, _ALONE * alone_s + asked.margin_s + flush_s)
        lead_s = cost.seconds(queue.others_of(record.load), urgency=urgency)
        new, now, margin_s = EdfPrompt(alone_s, due_s - flush_s), asked.now, asked.margin_s
        waiting = edf_prompts(queue, cost, now, ask.batch, urgency)
        found = forecast_prompt(waiting, new, lead_s, now, margin_s)
        due_s = new.deadline_s
        return Computing(record, cached, missing, alone_s, now, due_s, margin_s, found, urgency)

    def _local(
        self,
        decode: Sequence[ReplicaRecord],
        asked: _Asked,
        elsewhere: Computing,
        devices: Mapping[str, Device],
    ) -> Computing | None:
        """The decode replica that had better compute the prompt's rest itself, if there is one."""
        found, ask = [], asked.ask
        for record in decode:
            missing = ask.prompt_tokens - self._cached(record, ask)
            requests = self.load_tracker.requests(record)
            if missing > self._local_prefill_tokens or requests >= self._decode_batch:
                continue
            if self._capacity.is_full(record, ask):
                continue
            here = self._computing(record, asked, self._slower(record, elsewhere, ask))
            if is_lent(here, elsewhere, devices.get(record.device, Device.OWN), requests):
                found.append(here)
        return min(found, key=lambda one: (-one.cached, *self._used(one.record)), default=None)

    def _devices(self, prefill: Sequence[ReplicaRecord], least: Urgency) -> dict[str, Device]:
        """What prefill replicas compute with, as far as they say; all soon do if prompts wait."""
        found: dict[str, Device] = {}
        for record in prefill:
            if record.device and (
                least > Urgency.PROMPTS or self.load_tracker.backlog(record.id).is_busy(record.load)
            ):
                found[record.device] = Device.SHARED_BUSY
            elif record.device:
                found.setdefault(record.device, Device.SHARED_IDLE)
        return found

    def _slower(self, record: ReplicaRecord, elsewhere: Computing, ask: PlacementRequest) -> float:
        """How much slower than its costs a decode replica computes prompts, before it has said."""
        cost = self.costs.prefill(record.id)
        if cost.learned:
            return 1.0
        step_s = self.costs.step_s(record.id, self.load_tracker.requests(record))
        slack = max(_LEAST_SLACK, 1 - step_s / ask.itl_s)
        tokens = ask.prompt_tokens
        known_s = self.costs.prefill(elsewhere.record.id).seconds(tokens)
        return known_s / cost.seconds(tokens) / slack

    def _planned(
        self,
        computing: Computing,
        decode: ReplicaRecord,
        others: Sequence[ReplicaRecord],
        asked: _Asked,
        *,
        own_device: bool = False,
    ) -> PlacementPlan:
        """The first choice on that replica; all may go to `others`, it among them."""
        room = self._capacity
        requests, ask = self.load_tracker.requests(decode), asked.ask
        judged = others if ask.choices > 1 and not room.is_full(decode, ask) else [decode]
        stream_s = self.costs.stream_s(decode.id) or 1.0
        forecast = replace(
            self._forecast(computing, asked),
            step_s=self.costs.step_s(decode.id, requests + -(-ask.choices // len(others))),
            itl_s=min(ask.itl_s, self.load_tracker.itl_s(decode.id)),
            blocks_shortfall=room.blocks_shortfall(judged, ask),
            slots_shortfall=room.slots_shortfall(judged, ask),
            requests=requests,
            interval_s=stream_s / max(1, requests),
        )
        return PlacementPlan(
            Pair(computing.record, decode, computing.cached, own_device=own_device), forecast
        )

    def _forecast(self, computing: Computing, asked: _Asked) -> Forecast:
        """What is predicted of its prompt."""
        found = computing.forecast
        return Forecast(
            ttft_s=found.ends_s + self.costs.flush_s - asked.ask.arrived_s,
            deadline_s=computing.deadline_s,
            alone_s=computing.alone_s,
            work_s=found.work_s,
            feasible=found.feasible,
            urgency=computing.urgency,
            prompts_shortfall=self._prompts_shortfall(computing.record, asked.ask),
            learned=self.costs.prefill(computing.record.id).learned,
        )

    def _prompts_shortfall(self, record: ReplicaRecord, ask: PlacementRequest) -> int:
        """How many too many prompts of the batch lane would wait there, from here."""
        if not ask.batch:
            return 0
        waiting = self.load_tracker.backlog(record.id).batch_prompts + ask.choices
        return max(0, waiting - max(self._batch_prompts, ask.choices))

    def _room(self, record: ReplicaRecord, ask: PlacementRequest) -> tuple[bool, int, int]:
        """Where decode goes: whether it is full, then its load."""
        return self._capacity.is_full(record, ask), *self._used(record)

    def _used(self, record: ReplicaRecord) -> tuple[int, int]:
        return self.load_tracker.requests(record), self.load_tracker.last(record.id)

    def _cached(self, record: ReplicaRecord, ask: PlacementRequest) -> int:
        """Tokens of the prompt that need not be computed there, as far as is known; never all."""
        if not ask.digests:
            return 0
        needed_from = (ask.scored_from or ask.prompt_tokens) - 1
        usable = needed_from // record.load.block_size
        known = self._known.longest(record.id, ask.digests[:usable])
        return known * record.load.block_size


def _hurried(best: Callable[[_Asked], Computing], asked: _Asked) -> Computing:
    """The best place for it, in the least urgency in which it is in time, if there is one."""
    first = found = best(asked)
    if asked.ask.batch or asked.urgency is Urgency.NONE:
        return first
    for urgency in range(asked.urgency + 1, Urgency.URGENT + 1):
        if _in_budget(found, asked.ask):
            return found
        found = best(replace(asked, urgency=Urgency(urgency)))
    return found if _in_budget(found, asked.ask) or not first.forecast.feasible else first


def _in_budget(computing: Computing, ask: PlacementRequest) -> bool:
    """Whether it is in time, and not because it needs more than its budget even alone."""
    return computing.forecast.feasible and computing.deadline_s <= ask.arrived_s + ask.budget_s


def _nothing() -> None:
    """No decode replica holds anything for it."""
