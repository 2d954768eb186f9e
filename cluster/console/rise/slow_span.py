"""Finds the spans of time in which values were highest, unless chance explains them. Pure.

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
# Bound: searches for another slow time.
_MOST_SEARCHES = 3

Span = tuple[float, float]
Values = Sequence[tuple[float, float]]


def slow_spans(values: Values) -> list[Span]:
    """Begin and end, in whole steps, of each slow time, in their order; none if all are alike.

    Each value stands behind its time, in seconds since the epoch. A rise that gets worse is one
    span, and a calm time between two rises parts them.
    """
    found: list[Span] = []
    left = list(values)
    for _ in range(_MOST_SEARCHES):
        span = _whole_span(left)
        if span is None or any(one[0] < span[1] and span[0] < one[1] for one in found):
            break
        inside, left = _within(left, span), _beside(left, span)
        found += _without_calm(span, inside, left)
    return joined(found)


def is_in(at: float, span: Span) -> bool:
    """Whether the time is in the span, which has its begin and not its end."""
    return span[0] <= at < span[1]


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans in their order, with those that touch or overlap as one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            begin, end = found[-1][0], max(end, found.pop()[1])
        found.append((begin, end))
    return found


def _whole_span(values: Values) -> Span | None:
    """The span with the highest values, and what is high on both sides of it."""
    span = _highest_span(values)
    while span is not None:
        begin, end = span
        more = _highest_span(_beside(values, span))
        if more is None or more[1] < begin or more[0] > end:
            break
        span = min(begin, more[0]), max(end, more[1])
    return span


def _without_calm(span: Span, inside: Values, beside: Values) -> list[Span]:
    """The span, or its parts around a time in it whose values are as those beside the span."""
    calm = _highest_span([(at, -value) for at, value in inside])
    if calm is None or calm[0] <= span[0] or calm[1] >= span[1]:
        return [span]
    if _stands_out(_within(inside, calm), beside):
        return [span]
    parts = (span[0], calm[0]), (calm[1], span[1])
    return [one for part in parts for one in _without_calm(part, _within(inside, part), beside)]


def _stands_out(values: Values, others: Values) -> bool:
    """Whether the values are higher than the others, beyond chance."""
    ranks = _ranks([value for _, value in (*values, *others)])
    inside, whole = len(values), len(ranks)
    highs = [rank > (1 - _HIGHEST) * whole for rank in ranks]
    by_rank = _rank_ratio(sum(ranks[:inside]), inside, whole)
    by_share = _share_ratio(sum(highs[:inside]), inside, sum(highs), whole)
    return max(by_rank, by_share) >= _LEAST_RATIO


def _within(values: Values, span: Span) -> list[tuple[float, float]]:
    return [one for one in values if is_in(one[0], span)]


def _beside(values: Values, span: Span) -> list[tuple[float, float]]:
    return [one for one in values if not is_in(one[0], span)]


def _highest_span(values: Values) -> Span | None:
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
