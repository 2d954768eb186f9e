"""Says why TTFT rose: by stage, pool, replica, tenant, and the reason of waits. Pure.

The slow time is the span whose mean TTFT differs most from that of the rest, weighted by its
requests (Kulldorff, Huang and Konty, "A scan statistic for continuous data based on the normal
probability model", 2009). It is compared with all other requests of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from cluster.console.time_series import STEP_S
from cluster.console.ttft_sample import STAGES, TtftSample

# The least of a rise that is explained: a factor, seconds, and requests inside and outside.
_LEAST_FACTOR = 1.3
_LEAST_S = 0.005
_LEAST_REQUESTS = 5
# Bound: groups that are named, the largest first.
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class RiseShare:
    """What one stage, pool, replica, tenant or reason has of a rise.

    `share` is of the added TTFT. `slow_s` and `usual_s` are the means in the slow time and beside
    it. `requests` is the share of the slow requests. `load` is its prompt tokens per second in the
    slow time over those beside it, None where there were none.
    """

    name: str
    share: float
    slow_s: float
    usual_s: float | None
    requests: float | None = None
    load: float | None = None


@dataclass(frozen=True, slots=True)
class TtftRise:
    """A rise of the TTFT of an endpoint, from `begin` to `end` (seconds since the epoch)."""

    endpoint: str
    begin: float
    end: float
    slow_s: float
    usual_s: float
    requests: int
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
    found = [rise for group in by_endpoint.values() if (rise := _rise(group)) is not None]
    found.sort(key=lambda rise: -(rise.slow_s - rise.usual_s) * rise.requests)
    return found[:most]


def _rise(samples: Sequence[TtftSample]) -> TtftRise | None:
    span = slow_span([(one.at, one.ttft_s) for one in samples])
    if span is None:
        return None
    begin, end = span
    slow = [one for one in samples if begin <= one.at < end]
    usual = [one for one in samples if not begin <= one.at < end]
    slow_s, usual_s = (fmean(one.ttft_s for one in group) for group in (slow, usual))
    if slow_s < _LEAST_FACTOR * usual_s or slow_s - usual_s < _LEAST_S:
        return None
    times = end - begin, max(STEP_S, _length(samples) - (end - begin))
    return TtftRise(
        samples[0].endpoint,
        begin,
        end,
        slow_s,
        usual_s,
        len(slow),
        _parts(slow, usual, lambda one: dict(zip(STAGES, one.stages, strict=True))),
        _parts(slow, usual, TtftSample.by_pool),
        _groups(slow, usual, usual_s, times, lambda one: one.replica),
        _groups(slow, usual, usual_s, times, lambda one: one.tenant),
        _parts(slow, usual, lambda one: {one.waited_for: one.stages[0]} if one.waited_for else {}),
    )


def slow_span(values: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """The span of steps in which the values differ most upwards; None where there are too few."""
    steps: dict[int, list[float]] = {}
    for at, value in values:
        steps.setdefault(int(at // STEP_S), []).append(value)
    numbers = sorted(steps)
    counts, sums = [0], [0.0]
    for number in numbers:
        counts.append(counts[-1] + len(steps[number]))
        sums.append(sums[-1] + sum(steps[number]))
    best, found = 0.0, None
    for begin in range(len(numbers)):
        for end in range(begin + 1, len(numbers) + 1):
            inside = counts[end] - counts[begin]
            outside = counts[-1] - inside
            if inside < _LEAST_REQUESTS or outside < _LEAST_REQUESTS:
                continue
            total = sums[end] - sums[begin]
            difference = total / inside - (sums[-1] - total) / outside
            weight = difference * difference * inside * outside / counts[-1]
            if difference > 0 and weight > best:
                best, found = weight, (numbers[begin], numbers[end - 1] + 1)
    return None if found is None else (found[0] * STEP_S, found[1] * STEP_S)


def _parts(
    slow: Sequence[TtftSample],
    usual: Sequence[TtftSample],
    parts_of: Callable[[TtftSample], dict[str, float]],
) -> list[RiseShare]:
    """The shares of parts into which each TTFT falls."""
    sums: dict[str, list[float]] = {}
    for which, group in enumerate((slow, usual)):
        for one in group:
            for name, seconds in parts_of(one).items():
                sums.setdefault(name, [0.0, 0.0])[which] += seconds
    added_s = fmean(one.ttft_s for one in slow) - fmean(one.ttft_s for one in usual)
    found = []
    for name, (slow_sum, usual_sum) in sums.items():
        slow_s, usual_s = slow_sum / len(slow), usual_sum / len(usual)
        found.append(RiseShare(name, (slow_s - usual_s) / added_s, slow_s, usual_s))
    return _largest(found)


def _groups(
    slow: Sequence[TtftSample],
    usual: Sequence[TtftSample],
    usual_s: float,
    times: tuple[float, float],
    name_of: Callable[[TtftSample], str],
) -> list[RiseShare]:
    """The shares of groups of requests; `times` are the lengths of the slow and the other time."""
    groups: dict[str, tuple[list[TtftSample], list[TtftSample]]] = {}
    for which, samples in enumerate((slow, usual)):
        for one in samples:
            groups.setdefault(name_of(one), ([], []))[which].append(one)
    added_s = sum(one.ttft_s - usual_s for one in slow)
    found = []
    for name, (here, before) in groups.items():
        if not here:
            continue
        loads = [
            sum(one.prompt_tokens for one in group) / seconds
            for group, seconds in zip((here, before), times, strict=True)
        ]
        found.append(
            RiseShare(
                name,
                sum(one.ttft_s - usual_s for one in here) / added_s,
                fmean(one.ttft_s for one in here),
                fmean(one.ttft_s for one in before) if before else None,
                len(here) / len(slow),
                loads[0] / loads[1] if loads[1] else None,
            )
        )
    return _largest(found)


def _largest(found: Iterable[RiseShare]) -> list[RiseShare]:
    return sorted(found, key=lambda one: -one.share)[:_MOST_NAMED]


def _length(samples: Sequence[TtftSample]) -> float:
    times = [one.at for one in samples]
    return max(times) - min(times)
