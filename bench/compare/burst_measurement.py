"""The measurement of a contender under a load, as data for files and comparisons. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from bench.load.arrivals import BURST
from bench.load.goodput import ALL, Budgets, Quantiles, over_work
from bench.load.request_outcome import Outcome
from bench.load.run_record import LoadRun
from bench.systems.contenders import LONG, RUNNING

Counts = dict[str, dict[str, int]]
Values = dict[str, list[float]]
_COUNTED = ("requests", "within_goals", "late", "refused", "failed")
_DIGITS = 4
# Digits of a request compared with itself: differences are of tenths of a millisecond.
_ITL_DIGITS = 5
_REASONS = 5
# Cores taken by the host from which on a report mentions them.
_DISTURBING = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """One load on one system in one round, or the error that came instead.

    `counts` has requests by phase and by what became of them; `values` has what was measured of
    each (seconds), by names such as `ttft burst`. `each_within_goals` and `each_itl` (seconds; None
    where there is none) have every request, in the load's order. `failures` has a few reasons,
    `about` is the load in words, `at` when it was, `commit` what Tandem was then; times and budgets
    were `slow` times as long as usual, lengths a `shrink`-th.
    """

    system: str
    round: int
    load: str
    seed: int
    counts: Counts = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    error: str | None = None
    failures: list[str] = field(default_factory=list)
    about: str = ""
    at: str = ""
    commit: str = ""
    slow: float = 1.0
    shrink: float = 1.0
    each_within_goals: list[bool] = field(default_factory=list)
    each_itl: list[float | None] = field(default_factory=list)

    def as_json(self) -> str:
        """The measurement as JSON on one line."""
        return json.dumps(asdict(self))

    def count(self, name: str, phase: str = ALL) -> int:
        """Requests of a phase with this outcome; 0 if there is no such phase."""
        return self.counts.get(phase, {}).get(name, 0)

    def line(self) -> str:
        """The measurement in one line for the terminal."""
        if self.error is not None:
            return self.error
        if RUNNING in self.counts:
            before, during = (Quantiles.of(self.values[name]) for name in ("before", "during"))
            itls = f"ITL p95 {_ms(before.p95)} ms before, {_ms(during.p95)} ms during"
            return itls + self._disturbed
        ttft = Quantiles.of(self.values.get(f"ttft {BURST}", self.values[f"ttft {ALL}"]))
        return (
            f"{self.count('within_goals')} of {self.count('requests')} within goals,"
            f" {self.count('refused')} refused, in the burst {self.count('within_goals', BURST)} of"
            f" {self.count('requests', BURST)}, TTFT p99 {_ms(ttft.p99)} ms{self._disturbed}"
        )

    @property
    def _disturbed(self) -> str:
        took = max(self.values.get("host_cores", [0.0]))
        return f"; the host took {took:.2f} cores" if took >= _DISTURBING else ""


def of_load(run: LoadRun) -> tuple[Counts, Values]:
    """Counts and values of a load with or without a burst."""
    found = run.figures()
    counts = {
        name: {what: getattr(phase, what) for what in _COUNTED}
        for name, phase in found.phases.items()
    }
    first = [one for one in run.outcomes if one.number == 0]
    values: Values = {}
    for name in found.phases:
        whole = [one for one in first if one.complete and name in (ALL, one.phase)]
        for title, value in _OF_EACH.items():
            values[f"{title} {name}"] = _rounded(map(value, whole))
    values["drain"] = _rounded([found.drain_s])
    values["tokens_per_s"] = [round(found.tokens_per_s, 1)]
    values["client_cores"] = _rounded([run.client_cores])
    values["client_late"] = _rounded([found.client_late.p99])
    return counts | _returned(run), values | _refusals(run) | _host(run)


def of_each(run: LoadRun) -> tuple[list[bool], list[float | None]]:
    """Whether each first try kept its goals, and its mean ITL, in the load's order."""
    first = sorted((one for one in run.outcomes if one.number == 0), key=lambda one: one.index)
    itls = (one.mean_itl_s if one.complete else None for one in first)
    rounded = [None if itl is None else round(itl, _ITL_DIGITS) for itl in itls]
    return [run.budgets.kept_by(one) for one in first], rounded


def of_itl(run: LoadRun) -> tuple[Counts, Values]:
    """ITL of the running streams before the long prompts and until the last one's first token.

    The first second, in which the streams begin, does not count.
    """
    running = [one for one in run.outcomes if one.phase == RUNNING]
    long = [one for one in run.outcomes if one.phase == LONG]
    firsts = [one.messages[0][0] for one in long if one.messages]
    begin = min(one.asked_s for one in long)
    end = max(firsts, default=begin)
    before = [itl for one in running for itl in itls_between(one, 1.0, begin)]
    during = [itl for one in running for itl in itls_between(one, begin, end)]
    counts = {
        name: {"requests": len(them), "failed": sum(not one.complete for one in them)}
        for name, them in ((RUNNING, running), (LONG, long))
    }
    values = {
        "before": _rounded(before),
        "during": _rounded(during),
        "ttft": _rounded(one.ttft_s for one in long),
    }
    return counts, values | _host(run)


def _host(run: LoadRun) -> Values:
    return {} if run.host_cores is None else {"host_cores": _rounded([run.host_cores])}


def itls_between(outcome: Outcome, begin: float, end: float) -> list[float]:
    """ITL of the messages that ended in that time; they may have begun before it."""
    found: list[float] = []
    for (earlier, _), (later, tokens) in zip(outcome.messages, outcome.messages[1:], strict=False):
        if begin < later <= end:
            found += [(later - earlier) / tokens] * tokens
    return found


def failures(run: LoadRun) -> list[str]:
    """The first few different reasons of failed requests."""
    reasons = dict.fromkeys(one.error[:200] for one in run.outcomes if one.error)
    return list(reasons)[:_REASONS]


def of_error(error: Exception) -> str:
    """The error in one line of bounded length."""
    return f"{type(error).__name__}: {error}"[:800]


_OF_EACH: dict[str, Callable[[Outcome], float | None]] = {
    "ttft": lambda one: one.ttft_s,
    "itl": lambda one: one.mean_itl_s,
    "stall": lambda one: one.stall_s,
    "ttlt": lambda one: one.ttlt_s,
}


def _refusals(run: LoadRun) -> Values:
    refused = [one for one in run.outcomes if one.refused]
    over = over_work(refused, run.outcomes)
    return {
        "refusal": _rounded(one.ended_s - one.due_s for one in refused),
        "decided": _rounded(one.decided_s for one in refused),
        "told": _rounded(one.told_s for one in refused),
        "named": _rounded(one.retry_after_s for one in refused),
        "over_work": _rounded(over),
    }


def _returned(run: LoadRun) -> Counts:
    returned = [one for one in run.outcomes if one.number > 0]
    budgets: Budgets = run.budgets
    answered = sum(one.complete for one in returned)
    within_goals = sum(map(budgets.kept_by, returned))
    return {
        "returned": {"requests": len(returned), "answered": answered, "within_goals": within_goals}
    }


def _rounded(values: Iterable[float | None]) -> list[float]:
    return [round(value, _DIGITS) for value in values if value is not None]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.0f}"


def pooled_values(runs: Sequence[Measured], name: str) -> list[float]:
    """One kind of value of several runs together."""
    return [value for each in runs for value in each.values.get(name, [])]
