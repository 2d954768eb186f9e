"""Figures of loads for the results: of each contender, and ratios of Tandem's modes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.compare.burst_measurement import Measured, pooled_values
from bench.compare.burst_report import ITL, goodput_ratio, median_within_goals
from bench.compare.paired_requests import one_by_one
from bench.core.results import Figure, Series, figure, only_measured, value_of
from bench.load.arrivals import BURST, CALM, DRAIN
from bench.load.goodput import ALL, Quantiles
from bench.systems.contenders import CONTENDERS, LONG, PEERS, POOLS, SINGLE

Figures = dict[str, Figure | None]
Summary = Callable[[Sequence[float]], float | None]
_MS = 1000.0


def as_series(runs: Sequence[Measured], load: str) -> Series:
    """The series of all complete runs of one load, of which there is at least one."""
    ended = [each for each in runs if each.load == load and not each.error]
    systems = [name for name in CONTENDERS if any(each.system == name for each in ended)]
    figures: Figures = {}
    for name in systems:
        mine = [each for each in ended if each.system == name]
        figures |= _beside_long(name, mine) if load == ITL else _of_load(name, mine)
    if load != ITL:
        figures |= _over(ended, load)
    slow = max(each.slow for each in ended)
    conditions: dict[str, str | int | float] = {
        "load": load,
        "about": " / ".join(dict.fromkeys(each.about for each in ended)),
        "slow": slow,
        "seeds": ", ".join(str(seed) for seed in sorted({each.seed for each in ended})),
    }
    last = max(ended, key=lambda each: each.at)
    commits = ", ".join(sorted({each.commit for each in ended}))
    name = load
    if (shrink := max(each.shrink for each in ended)) > 1:
        name, conditions["shrink"] = f"{name}, lengths / {shrink:g}", shrink
    if slow > 1:
        name = f"{name}, times x {slow:g}"
    return Series(
        name=name,
        commit=commits,
        date=last.at.partition(" ")[0],
        conditions=conditions,
        figures=only_measured(figures),
    )


def _of_load(name: str, runs: Sequence[Measured]) -> Figures:
    phases = (CALM, BURST, DRAIN) if any(each.counts.get(BURST) for each in runs) else ()
    counts = [("requests", "requests", ALL), ("within goals", "within_goals", ALL)]
    counts += [(f"within goals, {phase}", "within_goals", phase) for phase in phases]
    counts += [("refused", "refused", ALL), ("failed", "failed", ALL)]
    found: Figures = {
        f"{name}: {title}": figure((each.count(what, phase) for each in runs), "requests", "runs")
        for title, what, phase in counts
    }
    for phase in (ALL, *phases[:2]):
        for title, value in (("TTFT", "ttft"), ("ITL", "itl")):
            for point in ("p50", "p95", "p99", "mean"):
                kind = f"{name}: {title} {point}, {phase}"
                found[kind] = _pooled(runs, f"{value} {phase}", point, "ms")
    found[f"{name}: stall p99"] = _pooled(runs, f"stall {ALL}", "p99", "ms")
    found[f"{name}: drain"] = _pooled(runs, "drain", "p50", "s", "runs")
    if name not in PEERS:
        found |= _refusals(name, runs)
    if phases:
        ttft = [_pooled(runs, f"ttft {phase}", "p99", "ms") for phase in (BURST, CALM)]
        found[f"{name}: TTFT p99, burst over calm"] = _quotient(*ttft)
    for what in ("client_cores", "host_cores"):
        found[f"{name}: {what.replace('_', ' ')}"] = _pooled(runs, what, "p50", "cores", "runs")
    return found


def _refusals(name: str, runs: Sequence[Measured]) -> Figures:
    returned = sum(each.count("requests", "returned") for each in runs)
    within_goals = sum(each.count("within_goals", "returned") for each in runs)
    share = value_of(within_goals / returned, "of 1", returned, "requests") if returned else None
    return {
        f"{name}: refusal decided p99": _pooled(runs, "decided", "p99", "ms"),
        f"{name}: refusal told p99": _pooled(runs, "told", "p99", "ms"),
        f"{name}: retry time p50": _pooled(runs, "named", "p50", "s"),
        f"{name}: retry time over work p50": _pooled(runs, "over_work", "p50", "x"),
        f"{name}: returned, then within goals": share,
    }


def _beside_long(name: str, runs: Sequence[Measured]) -> Figures:
    found: Figures = {}
    for when in ("before", "during"):
        for point in ("p50", "p95"):
            kind = f"{name}: ITL {point} {when}"
            found[kind] = _pooled(runs, when, point, "ms", "tokens")
    during, before = found[f"{name}: ITL p95 during"], found[f"{name}: ITL p95 before"]
    found[f"{name}: ITL p95, during over before"] = _quotient(during, before)
    found[f"{name}: TTFT p50, long prompts"] = _pooled(runs, "ttft", "p50", "ms")
    served = sum(each.count("requests", LONG) - each.count("failed", LONG) for each in runs)
    asked = sum(each.count("requests", LONG) for each in runs)
    found[f"{name}: long prompts served"] = value_of(served, "requests", asked, "requests")
    return found


def _over(ended: Sequence[Measured], load: str) -> Figures:
    found: Figures = {}
    for ours in (POOLS, SINGLE):
        for other in (*PEERS, *((SINGLE,) if ours == POOLS else ())):
            ratio = goodput_ratio(ended, load, ours, other)
            values = ratio.values if ratio else ()
            found[f"{ours} over {other}: goodput"] = figure(values, "x", "runs")
    best = max(PEERS, key=lambda name: median_within_goals(ended, load, name) or 0.0)
    found[f"{POOLS} over the best peer: goodput"] = found[f"{POOLS} over {best}: goodput"]
    pools, single = ([each for each in ended if each.system == name] for name in (POOLS, SINGLE))
    for point in ("p50", "p95", "mean"):
        found[f"{POOLS} over {SINGLE}: ITL {point}"] = _by_pairs(pools, single, point)
    paired = one_by_one(pools, single)
    if paired:
        less = [_MS * value for value in paired.difference_s.values]
        found[f"{POOLS} less {SINGLE}: ITL of a request, p50"] = figure(less, "ms", "runs")
        smaller = paired.smaller.values
        found[f"{POOLS} less {SINGLE}: share of smaller ITL"] = figure(smaller, "of 1", "runs")
    return found


def _by_pairs(pools: Sequence[Measured], single: Sequence[Measured], point: str) -> Figure | None:
    """The ratio of a percentile of ITL, pairwise by round and seed."""
    mine, other = (
        {
            (each.round, each.seed): getattr(Quantiles.of(each.values.get(f"itl {ALL}", [])), point)
            for each in runs
        }
        for runs in (pools, single)
    )
    both = [key for key in sorted(mine) if mine[key] and other.get(key)]
    return figure((mine[key] / other[key] for key in both), "x", "pairs of runs")


def _pooled(
    runs: Sequence[Measured], name: str, point: str, unit: str, of: str = "requests"
) -> Figure | None:
    """A percentile of all runs' values together; the range is over single runs."""
    scale = _MS if unit == "ms" else 1.0
    values = pooled_values(runs, name)
    value = getattr(Quantiles.of(values), point)
    if value is None:
        return None
    own = (getattr(Quantiles.of(pooled_values([each], name)), point) for each in runs)
    spread = [scale * each for each in own if each is not None]
    return value_of(scale * value, unit, len(values), of, spread)


def _quotient(ours: Figure | None, other: Figure | None) -> Figure | None:
    if ours is None or other is None or not other.value:
        return None
    return value_of(ours.value / other.value, "x", min(ours.n, other.n), ours.of)
