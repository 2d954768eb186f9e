"""Percentiles, goodput and refusals of a load, whole and by phase. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.core.statistics import percentile
from bench.load.arrivals import BURST, Load
from bench.load.request_outcome import Outcome

ALL = "all"
_LEAST_WORK_S = 0.05


@dataclass(frozen=True, slots=True)
class Budgets:
    """The latency goals of a request in seconds: TTFT, mean ITL, longest stall."""

    ttft_s: float = 1.0
    itl_s: float = 0.060
    stall_s: float = 0.250

    def slower(self, by: float) -> Budgets:
        """The budgets, `by` times as long."""
        return Budgets(self.ttft_s * by, self.itl_s * by, self.stall_s * by)

    def kept_by(self, outcome: Outcome) -> bool:
        """Whether a complete answer is within all budgets. One message has no ITL and no stall."""
        ttft = outcome.ttft_s
        return (
            outcome.complete
            and ttft is not None
            and ttft <= self.ttft_s
            and (outcome.mean_itl_s or 0.0) <= self.itl_s
            and (outcome.stall_s or 0.0) <= self.stall_s
        )


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Percentiles and mean of `count` values; None without values."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Quantiles:
        """The percentiles of the values that are not None."""
        found = [value for value in values if value is not None]
        if not found:
            return cls(0, None, None, None, None)
        p50, p95, p99 = (percentile(found, share) for share in (0.50, 0.95, 0.99))
        return cls(len(found), p50, p95, p99, fmean(found))


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """The outcomes of the first tries of the requests that arrived in a phase.

    `late` requests were answered in full but not within the budgets. `failed` requests are all
    others that were not refused. Percentiles (seconds) are of requests that were answered
    in full; `mean_itl` is over requests, `itl` over tokens, `stall` over the longest of each.
    """

    requests: int
    within_goals: int
    late: int
    refused: int
    failed: int
    ttft: Quantiles
    ttfmt: Quantiles
    mean_itl: Quantiles
    itl: Quantiles
    stall: Quantiles
    ttlt: Quantiles


@dataclass(frozen=True, slots=True)
class RefusalFigures:
    """The refusals among all tries: their times, their retry times, and the requests that return.

    `decided` is from a request's arrival to the decision, `told` from there to the client.
    `over_work` is the retry time over the part of it in which there were prompts to compute.
    `returned` refused requests came back. `then_answered` of them were answered in full, and
    `then_within_goals` of them within the budgets, counted from their return.
    """

    count: int
    answer: Quantiles
    decided: Quantiles
    told: Quantiles
    named: Quantiles
    over_work: Quantiles
    returned: int
    then_answered: int
    then_within_goals: int


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """The figures of a load. `drain_s`: from the end of the burst until its last answer ended.

    `tokens_per_s` is over the time from the start to the last answer's end; `client_late` is how
    far behind its own schedule the client sent.
    """

    phases: dict[str, PhaseFigures]
    refusals: RefusalFigures
    drain_s: float | None
    tokens_per_s: float
    goodput_per_s: float
    client_late: Quantiles


def figures(load: Load, outcomes: Sequence[Outcome], budgets: Budgets) -> LoadFigures:
    """The figures of a load whose tries are `outcomes`."""
    first = [outcome for outcome in outcomes if outcome.number == 0]
    names = list(dict.fromkeys(name for name, _, _ in load.spans))
    phases = {ALL: phase_figures(first, budgets)}
    if len(names) > 1:
        for name in names:
            phases[name] = phase_figures([one for one in first if one.phase == name], budgets)
    lasted_s = max([load.seconds, *(outcome.ended_s for outcome in outcomes)])
    drained_s = drained(load, outcomes)
    return LoadFigures(
        phases=phases,
        refusals=_refusals(outcomes, budgets),
        drain_s=_after_burst(load, drained_s),
        tokens_per_s=sum(outcome.tokens for outcome in outcomes) / lasted_s,
        goodput_per_s=phases[ALL].within_goals / load.seconds,
        client_late=Quantiles.of(outcome.asked_s - outcome.due_s for outcome in outcomes),
    )


def phase_figures(outcomes: Sequence[Outcome], budgets: Budgets) -> PhaseFigures:
    """Counts and percentiles of some requests, with one try of each."""
    whole = [outcome for outcome in outcomes if outcome.complete]
    within_goals = sum(map(budgets.kept_by, whole))
    refused = sum(outcome.refused for outcome in outcomes)

    def of(value: Callable[[Outcome], float | None]) -> Quantiles:
        return Quantiles.of(map(value, whole))

    return PhaseFigures(
        requests=len(outcomes),
        within_goals=within_goals,
        late=len(whole) - within_goals,
        refused=refused,
        failed=len(outcomes) - len(whole) - refused,
        ttft=of(lambda one: one.ttft_s),
        ttfmt=of(lambda one: one.ttfmt_s),
        mean_itl=of(lambda one: one.mean_itl_s),
        itl=Quantiles.of(itl for one in whole for itl in one.itls_s()),
        stall=of(lambda one: one.stall_s),
        ttlt=of(lambda one: one.ttlt_s),
    )


def drained(load: Load, outcomes: Sequence[Outcome]) -> float | None:
    """The end of the last answer to a request that came before the burst's end, or None.

    Later tries of refused requests count, too.
    """
    burst = load.span(BURST)
    if burst is None:
        return None
    before = {one.index for one in outcomes if one.number == 0 and one.due_s < burst[1]}
    return max([burst[1], *(one.ended_s for one in outcomes if one.index in before)])


def over_work(refused: Sequence[Outcome], outcomes: Sequence[Outcome]) -> list[float]:
    """The retry time of each refusal over the part of it in which there was work.

    There is work while an admitted request waits for its first token. A part of less than
    50 ms counts as that much.
    """
    busy = _united((one.asked_s, one.messages[0][0]) for one in outcomes if one.messages)
    found = []
    for one in refused:
        if one.retry_after_s is not None:
            begin, end = one.ended_s, one.ended_s + one.retry_after_s
            work_s = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in busy)
            found.append(one.retry_after_s / max(work_s, _LEAST_WORK_S))
    return found


def _united(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of the intervals, as intervals that do not overlap."""
    united: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if united and begin <= united[-1][1]:
            begin, last = united.pop()
            end = max(end, last)
        united.append((begin, end))
    return united


def in_flight(outcomes: Sequence[Outcome]) -> list[tuple[float, int]]:
    """The number of requests in flight, at each time when it changes."""
    changes = [(one.due_s, 1) for one in outcomes] + [(one.ended_s, -1) for one in outcomes]
    steps, count = [(0.0, 0)], 0
    for moment, change in sorted(changes, key=lambda one: (one[0], -one[1])):
        count += change
        steps.append((moment, count))
    return steps


def _after_burst(load: Load, drained_s: float | None) -> float | None:
    burst = load.span(BURST)
    return None if burst is None or drained_s is None else drained_s - burst[1]


def _refusals(outcomes: Sequence[Outcome], budgets: Budgets) -> RefusalFigures:
    refused = [outcome for outcome in outcomes if outcome.refused]
    returned = [outcome for outcome in outcomes if outcome.number > 0]
    return RefusalFigures(
        count=len(refused),
        answer=Quantiles.of(one.ended_s - one.due_s for one in refused),
        decided=Quantiles.of(one.decided_s for one in refused),
        told=Quantiles.of(one.told_s for one in refused),
        named=Quantiles.of(one.retry_after_s for one in refused),
        over_work=Quantiles.of(over_work(refused, outcomes)),
        returned=len(returned),
        then_answered=sum(outcome.complete for outcome in returned),
        then_within_goals=sum(map(budgets.kept_by, returned)),
    )
