"""Says why TTFT rose: by stage, pool, replica, tenant, and the reason of waits. Pure.

The slow time of an endpoint is compared with all other requests of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cluster.console.rise_cause import RiseCause, cause_of, facts_of, sentence_of
from cluster.console.rise_shares import RiseShare, mean_s, of_tenants, on_replicas, parts
from cluster.console.slow_span import LEAST_VALUES, slow_span
from cluster.console.time_series import STEP_S
from cluster.console.ttft_sample import STAGES, TtftSample
from cluster.display_text import long_time, rounded_time

# The least of a rise that is explained: a factor, and seconds.
_LEAST_FACTOR = 1.5
_LEAST_S = 0.02
# A rise goes on if it ended at most so long before the newest first token.
_GOES_ON_S = 3 * STEP_S


@dataclass(frozen=True, slots=True)
class TtftRise:
    """A rise of the TTFT of an endpoint, from `begin` to `end` (seconds since the epoch).

    `words` say all of it in a few sentences, and `facts` in a few words for each question. Both are
    the same in the console and in `tandem top`.
    """

    endpoint: str
    begin: float
    end: float
    slow_s: float
    usual_s: float
    requests: int
    cause: RiseCause
    words: str
    facts: dict[str, str]
    stages: list[RiseShare] = field(default_factory=list)
    pools: list[RiseShare] = field(default_factory=list)
    replicas: list[RiseShare] = field(default_factory=list)
    tenants: list[RiseShare] = field(default_factory=list)
    reasons: list[RiseShare] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)


def rises(samples: Sequence[TtftSample], most: int = 4) -> list[TtftRise]:
    """The endpoints whose TTFT rose, the most added seconds first."""
    by_endpoint: dict[str, list[TtftSample]] = {}
    for one in samples:
        by_endpoint.setdefault(one.endpoint, []).append(one)
    # What is too little to stand out at one endpoint may do so over all of them.
    common = slow_span([each for group in by_endpoint.values() for each in _placed(group)])
    groups = by_endpoint.values()
    found = [rise for one in groups if (rise := _rise(one, samples, common)) is not None]
    found.sort(key=lambda rise: -(rise.slow_s - rise.usual_s) * rise.requests)
    return [_beside(rise, found) for rise in found[:most]]


def _placed(samples: Sequence[TtftSample]) -> list[tuple[float, float]]:
    """The place of each TTFT among those of its endpoint, from 0 to 1, behind its time."""
    order = sorted(samples, key=lambda one: one.ttft_s)
    return [(one.at, (place + 0.5) / len(order)) for place, one in enumerate(order)]


def _rise(
    samples: Sequence[TtftSample],
    everything: Sequence[TtftSample],
    common: tuple[float, float] | None,
) -> TtftRise | None:
    span = slow_span([(one.at, one.ttft_s) for one in samples]) or common
    if span is None:
        return None
    begin, end = span
    slow = [one for one in samples if begin <= one.at < end]
    usual = [one for one in samples if not begin <= one.at < end]
    if min(len(slow), len(usual)) < LEAST_VALUES:
        return None
    added_s = mean_s(slow) - mean_s(usual)
    if added_s < max(_LEAST_S, (_LEAST_FACTOR - 1) * mean_s(usual)):
        return None
    return _explained(span, slow, usual, everything)


def _explained(
    span: tuple[float, float],
    slow: Sequence[TtftSample],
    usual: Sequence[TtftSample],
    everything: Sequence[TtftSample],
) -> TtftRise:
    """The rise in that span, with the requests of its endpoint in it and beside it."""
    begin, end = span
    slow_s, usual_s = mean_s(slow), mean_s(usual)
    stages = parts(slow, usual, lambda one: dict(zip(STAGES, one.stages, strict=True)))
    pools = parts(slow, usual, TtftSample.by_pool)
    replicas = on_replicas(slow, usual, pools[0].name)
    tenants = of_tenants(slow, usual, everything, span)
    waits = parts(
        slow, usual, lambda one: {one.waited_for: one.stages[0]} if one.waited_for else {}
    )
    cause = cause_of(len(slow), stages, pools, replicas, tenants, waits)
    facts = facts_of(cause, stages, pools, replicas, tenants)
    endpoint, newest = slow[0].endpoint, max(one.at for one in everything)
    goes_on = newest - end < _GOES_ON_S
    length = long_time(end - begin)
    when = (
        f"has been high for {length}" if goes_on else f"was high for {length}, and is as usual now"
    )
    now, before = rounded_time(slow_s), rounded_time(usual_s)
    took = f"{now} in the mean of {len(slow)} requests instead of {before}"
    words = f"TTFT of {endpoint} {when}: {took}. {sentence_of(cause, facts)}"
    return TtftRise(
        endpoint=endpoint,
        begin=begin,
        end=min(end, newest),  # the last step may not be over
        slow_s=slow_s,
        usual_s=usual_s,
        requests=len(slow),
        cause=cause,
        words=words,
        facts=facts,
        stages=stages,
        pools=pools,
        replicas=replicas,
        tenants=tenants,
        reasons=waits,
    )


def _beside(rise: TtftRise, found: Sequence[TtftRise]) -> TtftRise:
    """The rise with the names of the other endpoints that were slow at that time."""
    others = [
        one.endpoint
        for one in found
        if one is not rise and one.begin < rise.end and rise.begin < one.end
    ]
    if not others:
        return rise
    return replace(rise, words=f"{rise.words} Slow at that time, too: {', '.join(others)}.")
