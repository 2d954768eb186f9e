"""How fast each replica computes now, and which one is slow beside its pool. Pure.

The figures come from the replicas' own reports, so every router tells the same. A mark also asks
what the router has learned, because a report tells of the last moment alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cluster.placement.cost_model import CostModel
from cluster.replica_record import ReplicaRecord

_PROMPT_TOKENS = 1000
# A replica is slow if it takes more than so many times the median of the others.
_LEAST_TIMES = 2.0


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
    now, and in what the router has learned of their last prompts or steps. So at least half of the
    others do the same work more than twice as fast, and no single slow moment makes a mark. In a
    pool of two the slower one can be marked, and in a pool that is slow as a whole none is.

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
    streams = one.load.streams

    def of_prefill() -> float:
        found = [costs.learned_prefill_s(each.id, _PROMPT_TOKENS) for each in (one, *others)]
        return _times(found[0], found[1:])

    def of_steps() -> float:
        found = [costs.learned_step_s(each.id, streams) for each in (one, *others)]
        return _times(found[0], found[1:])

    times = max(
        _lesser(_times(prefill_s, (prefills_s[other.id] for other in others)), of_prefill),
        _lesser(_times(step_s, (_step_s(other, streams) for other in others)), of_steps),
    )
    slow = f"slow: {times:.{1 if times < 10 else 0}f}x the others" if times > _LEAST_TIMES else ""
    return ReplicaSpeed(_rounded(prefill_s), _rounded(step_s), slow)


def _lesser(now: float, learned: Callable[[], float]) -> float:
    """The lesser of both; 0 without asking what was learned, which takes long, if `now` is well."""
    return min(now, learned()) if now > _LEAST_TIMES else 0.0


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
