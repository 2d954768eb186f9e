"""Finds the span of time in which values were highest, and whether chance explains it. Pure.

Of all spans the one counts that is the least likely by chance, in one of two measures:

- The sum of ranks, so that a few outliers make no span (Jung and Cho, "A nonparametric spatial scan
  statistic for continuous data", 2015).
- The number of values among the highest tenth (Kulldorff, "A spatial scan statistic", 1997, for
  Bernoulli trials), because often a part of the requests is slow, as on one of many replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from math import log

from cluster.console.time_series import STEP_S

# The least numbers of values inside and outside.
LEAST_VALUES = 5
# Tuned for calm traffic: the least log-likelihood ratio. By chance one of the thousands of spans
# has it in one of some hundred quarters of an hour.
_LEAST_RATIO = 12.0
_HIGHEST = 0.1


def slow_span(values: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Begin and end, in whole steps, of the span with the highest values; None if all are alike.

    Each value stands behind its time, in seconds since the epoch. A rise that gets worse is one
    span: where the values beside the highest ones are high themselves, they belong to it.
    """
    span = _highest_span(values)
    while span is not None:
        begin, end = span
        beside = _highest_span([one for one in values if not begin <= one[0] < end])
        if beside is None or beside[1] < begin or beside[0] > end:
            break
        span = min(begin, beside[0]), max(end, beside[1])
    return span


def _highest_span(values: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    steps: dict[int, list[float]] = {}
    for (at, _), rank in zip(values, _ranks([value for _, value in values]), strict=True):
        steps.setdefault(int(at // STEP_S), []).append(rank)
    numbers, whole = sorted(steps), len(values)
    if whole < 2 * LEAST_VALUES:
        return None
    high = (1 - _HIGHEST) * whole
    counts = _sums(len(steps[number]) for number in numbers)
    ranks = _sums(sum(steps[number]) for number in numbers)
    highs = _sums(sum(rank > high for rank in steps[number]) for number in numbers)
    best, found = _LEAST_RATIO, None
    for begin in range(len(numbers)):
        for end in range(begin + 1, len(numbers) + 1):
            inside, rank_sum, high_count = (
                sums[end] - sums[begin] for sums in (counts, ranks, highs)
            )
            if min(inside, whole - inside) < LEAST_VALUES:
                continue
            ratio = max(
                _rank_ratio(rank_sum, inside, whole),
                _share_ratio(high_count, inside, highs[-1], whole),
            )
            if ratio > best:
                best, found = ratio, (numbers[begin] * STEP_S, (numbers[end - 1] + 1) * STEP_S)
    return found


def _rank_ratio(rank_sum: float, inside: float, whole: float) -> float:
    """The log-likelihood ratio of a rank sum, as of a normal variable (Wilcoxon, 1945)."""
    above = rank_sum - inside * (whole + 1) / 2
    variance = inside * (whole - inside) * (whole + 1) / 12
    return above * above / variance / 2 if above > 0 else 0.0


def _share_ratio(here: float, inside: float, of: float, whole: float) -> float:
    """The log-likelihood ratio of `here` of `inside` values where `of` of `whole` are expected."""
    outside, there = whole - inside, of - here
    if here * outside <= there * inside:
        return 0.0
    return _likelihood(here, inside) + _likelihood(there, outside) - _likelihood(of, whole)


def _likelihood(count: float, whole: float) -> float:
    return sum(part * log(part / whole) for part in (count, whole - count) if part > 0)


def _sums(values: Iterable[float]) -> list[float]:
    return [0.0, *accumulate(values)]


def _ranks(values: Sequence[float]) -> list[float]:
    """The ranks from 1; equal values share their mean rank."""
    ranks, before = [0.0] * len(values), 0
    order = sorted(range(len(values)), key=values.__getitem__)
    for _, group in groupby(order, key=values.__getitem__):
        equal = list(group)
        for index in equal:
            ranks[index] = before + (len(equal) + 1) / 2
        before += len(equal)
    return ranks
