"""The part of PromQL that the chart's alerts are written in, evaluated over given samples.

Parsed by `promql_parser`; what is not known here raises NotImplementedError. It follows Prometheus:
a sample counts for five minutes, `rate` and `increase` extrapolate to their range's ends,
`histogram_quantile` is linear within a bucket (https://prometheus.io/docs/prometheus/latest/querying/).
`test_alerts.py` compares it with promtool where that is installed.
"""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import promql_parser as parser

LOOKBACK_S = 300.0
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: (
        a / b if b else math.nan if not a or math.isnan(a) else math.copysign(math.inf, a)
    ),
}
_COMPARISON: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_AGGREGATION: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "avg": lambda values: sum(values) / len(values),
    "count": lambda values: float(len(values)),
}


@dataclass(frozen=True)
class Series:
    """Samples of one series, in the order of their times."""

    labels: Mapping[str, str]
    times_s: list[float]
    values: list[float]

    def at(self, now: float) -> float | None:
        """The newest sample that is not too old."""
        place = bisect_right(self.times_s, now)
        if not place or self.times_s[place - 1] < now - LOOKBACK_S:
            return None
        return self.values[place - 1]

    def within(self, begin: float, end: float) -> list[tuple[float, float]]:
        """The samples from `begin` to `end`, both included."""
        pairs = zip(self.times_s, self.values, strict=True)
        return [(time, value) for time, value in pairs if begin <= time <= end]


def evaluate(expression: Any, series: list[Series], now: float) -> Value:
    """An expression's value at a time; text or what `promql_parser.parse` made of it."""
    if isinstance(expression, str):
        expression = parser.parse(expression)
    return _Evaluation(series, now).of(expression)


class _Evaluation:
    def __init__(self, series: list[Series], now: float) -> None:
        self._series = series
        self._now = now

    def of(self, node: Any) -> Value:
        match node:
            case parser.NumberLiteral():
                return float(node.val)
            case parser.ParenExpr():
                return self.of(node.expr)
            case parser.VectorSelector():
                return self._select(node)
            case parser.AggregateExpr():
                return self._aggregate(node)
            case parser.Call():
                return self._call(node)
            case parser.BinaryExpr():
                return self._binary(node)
        raise NotImplementedError(type(node).__name__)

    def _vector(self, node: Any) -> Vector:
        value = self.of(node)
        assert isinstance(value, dict), f"not a vector: {node}"
        return value

    def _select(self, node: Any) -> Vector:
        now = self._now - _seconds(node.offset)
        found = {_labels(one): one.at(now) for one in self._series if _matches(node, one)}
        return {labels: value for labels, value in found.items() if value is not None}

    def _call(self, node: Any) -> Vector:
        name = node.func.name
        if name == "histogram_quantile":
            return _quantiles(float(node.args[0].val), self._vector(node.args[1]))
        if name in ("rate", "increase", "avg_over_time"):
            return self._over_time(name, node.args[0])
        raise NotImplementedError(name)

    def _over_time(self, name: str, matrix: Any) -> Vector:
        selector, range_s = matrix.vector_selector, matrix.range.total_seconds()
        end = self._now - _seconds(selector.offset)
        made: Vector = {}
        for one in self._series:
            if not _matches(selector, one):
                continue
            samples = one.within(end - range_s, end)
            if name == "avg_over_time":
                value = sum(v for _, v in samples) / len(samples) if samples else None
            else:
                value = _increase(samples, end - range_s, end)
                if value is not None and name == "rate":
                    value /= range_s
            if value is not None:
                made[_without(_labels(one), {"__name__"})] = value
        return made

    def _aggregate(self, node: Any) -> Vector:
        groups: dict[Labels, list[float]] = defaultdict(list)
        modifier = node.modifier
        for labels, value in self._vector(node.expr).items():
            if modifier is None:
                kept: Labels = frozenset()
            elif modifier.type == parser.AggModifierType.By:
                kept = _only(labels, set(modifier.labels))
            else:
                kept = _without(labels, {"__name__", *modifier.labels})
            groups[kept].append(value)
        combine = _AGGREGATION[str(node.op)]
        return {labels: combine(values) for labels, values in groups.items()}

    def _binary(self, node: Any) -> Value:
        left, right, sign = self.of(node.lhs), self.of(node.rhs), str(node.op)
        if sign in ("and", "or", "unless"):
            assert isinstance(left, dict) and isinstance(right, dict)
            return _set_operation(sign, left, right, node.modifier)
        if node.modifier is not None and node.modifier.return_bool:
            raise NotImplementedError("bool")
        if isinstance(left, float) and isinstance(right, float):
            return _ARITHMETIC[sign](left, right)
        return _vector_operation(sign, left, right, node.modifier)


def _vector_operation(sign: str, left: Value, right: Value, modifier: Any) -> Vector:
    """Pairs of values: one to one by their labels, or each with the scalar."""
    if isinstance(left, float):
        assert isinstance(right, dict)
        pairs = [(labels, left, value, value) for labels, value in right.items()]
    elif isinstance(right, float):
        pairs = [(labels, value, right, value) for labels, value in left.items()]
    else:
        others = {_key(labels, modifier): value for labels, value in right.items()}
        assert len(others) == len(right), "many to one"
        keyed = [(labels, value, _key(labels, modifier)) for labels, value in left.items()]
        pairs = [(labels, one, others[key], one) for labels, one, key in keyed if key in others]
    made: Vector = {}
    for labels, one, other, kept in pairs:
        if sign in _COMPARISON:
            if _COMPARISON[sign](one, other):
                made[labels] = kept
        else:
            made[_without(labels, {"__name__"})] = _ARITHMETIC[sign](one, other)
    return made


def _set_operation(sign: str, left: Vector, right: Vector, modifier: Any) -> Vector:
    there = {_key(labels, modifier) for labels in right}
    if sign == "or":
        here = {_key(labels, modifier) for labels in left}
        return left | {k: v for k, v in right.items() if _key(k, modifier) not in here}
    wanted = sign == "and"
    return {k: v for k, v in left.items() if (_key(k, modifier) in there) == wanted}


def _key(labels: Labels, modifier: Any) -> Labels:
    """What two sides of an operation have to share."""
    matching = None if modifier is None else modifier.matching
    if matching is None:
        return _without(labels, {"__name__"})
    if matching.type == parser.LabelModifierType.Include:
        return _only(labels, set(matching.labels))
    return _without(labels, {"__name__", *matching.labels})


def _increase(samples: list[tuple[float, float]], begin: float, end: float) -> float | None:
    """By how much a counter rose, resets added, extrapolated as Prometheus does."""
    if len(samples) < 2:
        return None
    values = [value for _, value in samples]
    rise = values[-1] - values[0]
    rise += sum(a for a, b in pairwise(values) if b < a)
    first_s, last_s = samples[0][0], samples[-1][0]
    sampled_s = last_s - first_s
    between_s = sampled_s / (len(samples) - 1)
    before_s, after_s = first_s - begin, end - last_s
    if rise > 0 and values[0] >= 0:
        before_s = min(before_s, sampled_s * values[0] / rise)
    reach_s = 1.1 * between_s
    extended_s = sampled_s
    extended_s += before_s if before_s < reach_s else between_s / 2
    extended_s += after_s if after_s < reach_s else between_s / 2
    return rise * extended_s / sampled_s


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        if (bound := dict(labels).get("le")) is not None:
            groups[_without(labels, {"le", "__name__"})].append((float(bound), count))
    return {labels: _quantile(quantile, sorted(found)) for labels, found in groups.items()}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    if len(buckets) < 2 or buckets[-1][0] != math.inf or not buckets[-1][1] > 0:
        return math.nan
    rank = quantile * buckets[-1][1]
    place = next(i for i, (_, count) in enumerate(buckets) if count >= rank)
    if place == len(buckets) - 1:
        return buckets[-2][0]
    upper, count = buckets[place]
    lower, below = buckets[place - 1] if place else (0.0, 0.0)
    return lower + (upper - lower) * (rank - below) / (count - below)


def _matches(selector: Any, series: Series) -> bool:
    if selector.name is not None and series.labels.get("__name__") != selector.name:
        return False
    return all(_fits(one, series.labels.get(one.name, "")) for one in selector.matchers.matchers)


def _fits(matcher: Any, value: str) -> bool:
    ops = parser.MatchOp
    if matcher.op in (ops.Equal, ops.NotEqual):
        return bool((matcher.value == value) == (matcher.op == ops.Equal))
    return (re.fullmatch(matcher.value, value) is not None) == (matcher.op == ops.Re)


def _labels(series: Series) -> Labels:
    return frozenset(series.labels.items())


def _only(labels: Labels, names: set[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name in names)


def _without(labels: Labels, names: set[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name not in names)


def _seconds(offset: Any) -> float:
    return 0.0 if offset is None else float(offset.total_seconds())
