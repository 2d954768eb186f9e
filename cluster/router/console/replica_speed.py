"""How fast each replica computes now, and which one is slow beside its pool. Pure.

The figures come from the replicas' own reports, so every router tells the same. A mark also asks
what the router has seen, because a report tells of the last moment alone. Of prompts it asks for
the last ones, because a router that avoids a slow replica may see few of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median

from cluster.console.rise.cause import SLOW_TIMES
from cluster.placement.cost_model import LAST_PROMPTS, CostModel
from cluster.replica_record import ReplicaRecord

_PROMPT_TOKENS = 1000
# Bound: a prompt counts as at most so many times the usual, so one prompt alone makes no mark.
_FARTHEST = 4.0


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """The times of one replica in seconds, to three digits; None: not its work, or not known yet.

    `prefill_s` is for 1,000 prompt tokens, at the speed of its last full passes. So prompts of any
    length compare, and cached tokens do not count. `step_s` is for a decode step, the median of the
    last ones. `slow` says in words how a slow replica compares with the others, "" for all others.
    """

    prefill_s: float | None = None
    step_s: float | None = None
    slow: str = ""


def speeds(replicas: Iterable[ReplicaRecord], costs: CostModel) -> dict[str, ReplicaSpeed]:
    """The speed of each replica, by its id.

    A replica is slow if it takes more than twice the median of the others of its role and model:
    now, and in its last prompts or in what the router has learned of its steps. So at least half of
    the others do the same work more than twice as fast. In a pool of two the slower one can be
    marked, and in a pool that is slow as a whole none is.

    Of prompts the geometric mean of the last three counts, each beside what the others would take
    for it. Each counts as a quarter to four times of that, and a missing one as usual. So two
    prompts that take three times as long suffice. No single prompt makes a mark, however long it
    took, nor does a single moment: prompts that overlap count as one.

    A decode step with twice the streams takes at most twice as long. So the step of another replica
    counts with the most that it would take with as many streams, and a long step that the batch
    explains makes no mark. A replica without streams is neither marked nor compared with.
    """
    pools: Mapping[tuple[str, str], list[ReplicaRecord]] = defaultdict(list)
    for one in replicas:
        pools[one.role, one.model_identity].append(one)
    found = {}
    for pool in pools.values():
        prefills_s = {one.id: _prefill_s(one) for one in pool}
        for one in pool:
            others = [other for other in pool if other is not one]
            found[one.id] = _speed(one, others, prefills_s, costs)
    return found


def _speed(
    one: ReplicaRecord,
    others: Sequence[ReplicaRecord],
    prefills_s: Mapping[str, float | None],
    costs: CostModel,
) -> ReplicaSpeed:
    prefill_s, step_s = prefills_s[one.id], one.load.step_s if one.serves("decode") else None
    streams, names = one.load.streams, [other.id for other in others]
    times = 0.0
    # What was seen is asked for last, because it takes long.
    of_prefill = _times(prefill_s, (prefills_s[name] for name in names))
    if of_prefill > SLOW_TIMES and _of_last_prompts(one.id, names, costs) > SLOW_TIMES:
        times = of_prefill
    of_step = _times(step_s, (_step_s(other, streams) for other in others))
    if of_step > SLOW_TIMES:
        learned_s = costs.learned_step_s(one.id, streams)
        beside_s = (costs.learned_step_s(name, streams) for name in names)
        times = max(times, min(of_step, _times(learned_s, beside_s)))
    slow = f"slow: {times:.{1 if times < 10 else 0}f}x the others" if times > SLOW_TIMES else ""
    return ReplicaSpeed(_rounded(prefill_s), _rounded(step_s), slow)


def _of_last_prompts(replica: str, others: Sequence[str], costs: CostModel) -> float:
    """How many times the usual its last prompts took, in the geometric mean; 0 without others."""
    found = []
    for features, seconds in costs.last_prompts(replica):
        times = _times(seconds, (costs.expected_s(name, features) for name in others))
        found.append(min(max(times, 1 / _FARTHEST), _FARTHEST) if times else 0.0)
    mean: float = prod(found) ** (1 / LAST_PROMPTS) if found else 0.0
    return mean


def _times(seconds: float | None, others: Iterable[float | None]) -> float:
    """How many times as long as the median of the others that is; 0 if that is not known."""
    known = [other for other in others if other] if seconds else []
    return seconds / median(known) if seconds and known else 0.0


def _prefill_s(one: ReplicaRecord) -> float | None:
    passes = one.load.passes
    if passes is None or not one.serves("prefill"):
        return None
    number = passes.passes(_PROMPT_TOKENS, queued=False)
    return number * passes.timing.pass_s + _PROMPT_TOKENS * passes.timing.token_s


def _step_s(one: ReplicaRecord, streams: int) -> float | None:
    """The most that a step here would take with so many streams; None if one side has none."""
    load = one.load
    if load.step_s is None or not (load.streams and streams):
        return None
    return load.step_s * max(1.0, streams / load.streams)


def _rounded(seconds: float | None) -> float | None:
    """Three digits, so that a page hears of changes alone that it shows."""
    return None if seconds is None else float(f"{seconds:.3g}")
