"""What each stage, pool, replica, tenant and reason has of a rise of TTFT. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from cluster.console.ttft_sample import TtftSample

# Bound: shares that are named, the largest first.
_MOST_NAMED = 6
# The least prompts from which a replica's speed is known.
_LEAST_PROMPTS = 3
_Samples = Sequence[TtftSample]


@dataclass(frozen=True, slots=True)
class RiseShare:
    """What one stage, pool, replica, tenant or reason has of a rise.

    `share` is of the added TTFT. `slow_s` and `usual_s` are the means in the slow time and beside
    it: over all requests, or over those of a tenant, or over those on a replica. `requests` is the
    share of the slow requests. A tenant also has a `load`: its prompt tokens per second in the slow
    time over those beside it, None where these are next to nothing. `excess` says how much of all
    that was sent beyond the usual it sent, 0 where chance explains its load. A prefill replica has
    a `slowdown`: the median time of a prompt token over the pool's usual one, None if not known.
    """

    name: str
    share: float
    slow_s: float
    usual_s: float | None
    requests: float | None = None
    load: float | None = None
    excess: float = 0.0
    slowdown: float | None = None


def parts(
    slow: _Samples, usual: _Samples, parts_of: Callable[[TtftSample], Mapping[str, float]]
) -> list[RiseShare]:
    """The shares of parts into which each TTFT falls."""
    sums: dict[str, list[float]] = {}
    for which, group in enumerate((slow, usual)):
        for one in group:
            for name, seconds in parts_of(one).items():
                sums.setdefault(name, [0.0, 0.0])[which] += seconds
    added_s = mean_s(slow) - mean_s(usual)
    found = []
    for name, (slow_sum, usual_sum) in sums.items():
        slow_s, usual_s = slow_sum / len(slow), usual_sum / len(usual)
        found.append(RiseShare(name, (slow_s - usual_s) / added_s, slow_s, usual_s))
    return _largest(found)


def on_replicas(slow: _Samples, usual: _Samples, pool: str) -> list[RiseShare]:
    """The shares of a pool's replicas: the time that requests spent there, or waited for it."""
    here, before = (
        _by(slow, lambda one: one.in_pool(pool)),
        _by(usual, lambda one: one.in_pool(pool)),
    )
    times = [seconds for group in before.values() for seconds in group]
    usual_s = fmean(times) if times else 0.0
    added_s = len(slow) * (mean_s(slow) - mean_s(usual))
    return _largest(
        RiseShare(
            name,
            sum(seconds - usual_s for seconds in group) / added_s,
            fmean(group),
            fmean(before[name]) if name in before else None,
            len(group) / len(slow),
            slowdown=_slowdown(slow, usual, name) if pool == "prefill" else None,
        )
        for name, group in here.items()
    )


def _slowdown(slow: _Samples, usual: _Samples, replica: str) -> float | None:
    now = [one.token_s for one in slow if one.replica == replica and one.token_s is not None]
    before = [one.token_s for one in usual if not one.local and one.token_s is not None]
    if min(len(now), len(before)) < _LEAST_PROMPTS:
        return None
    return median(now) / median(before)


def of_tenants(
    slow: _Samples, usual: _Samples, everything: _Samples, span: tuple[float, float]
) -> list[RiseShare]:
    """The shares of tenants; their loads are of `everything`, since one tenant delays others."""
    loads = _loads(everything, span)
    beyond = {name: max(0.0, one.sent - one.expected) for name, one in loads.items()}
    whole = sum(beyond.values())
    usual_s = mean_s(usual)
    added_s = len(slow) * (mean_s(slow) - usual_s)
    here, before = (_by(group, lambda one: (one.tenant, one.ttft_s)) for group in (slow, usual))
    found = []
    for name in {**here, **loads}:
        times, load = here.get(name, []), loads.get(name, _TenantLoad())
        found.append(
            RiseShare(
                name,
                sum(seconds - usual_s for seconds in times) / added_s,
                fmean(times) if times else 0.0,
                fmean(before[name]) if name in before else None,
                len(times) / len(slow),
                load.times_usual(),
                beyond.get(name, 0.0) / whole if whole and load.is_unusual() else 0.0,
            )
        )
    return sorted(found, key=lambda one: (-max(one.share, one.excess), one.name))[:_MOST_NAMED]


def mean_s(samples: _Samples) -> float:
    """The mean TTFT."""
    return fmean(one.ttft_s for one in samples)


@dataclass(slots=True)
class _TenantLoad:
    """Prompt tokens that a tenant sent in the slow time, and that it sends in a usual one."""

    sent: float = 0.0
    expected: float = 0.0
    variance: float = 0.0
    longest: int = 0

    def times_usual(self) -> float | None:
        """The load over the usual one; None beside which the usual one is next to nothing."""
        return self.sent / self.expected if self.expected > 0.01 * self.sent else None

    def is_unusual(self) -> bool:
        """Whether it sent half more than usual, and more than chance explains."""
        by_chance = 4 * sqrt(self.variance + self.longest**2)
        return self.sent > max(1.5 * self.expected, self.expected + by_chance)


def _loads(everything: _Samples, span: tuple[float, float]) -> dict[str, _TenantLoad]:
    """The loads by tenant; arrivals count as a compound Poisson process."""
    begin, end = span
    arrivals = [one.at - one.ttft_s for one in everything]
    beside_s = max(arrivals) - min(arrivals) - (end - begin)
    ratio = (end - begin) / beside_s if beside_s > 0 else 0.0
    found: dict[str, _TenantLoad] = {}
    for one, arrived in zip(everything, arrivals, strict=True):
        load = found.setdefault(one.tenant, _TenantLoad())
        load.longest = max(load.longest, one.prompt_tokens)
        if begin <= arrived < end:
            load.sent += one.prompt_tokens
        else:
            load.expected += ratio * one.prompt_tokens
            load.variance += ratio * (1 + ratio) * one.prompt_tokens**2
    return found


def _by(
    samples: _Samples, value_of: Callable[[TtftSample], tuple[str, float] | None]
) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for one in samples:
        if (found := value_of(one)) is not None:
            groups.setdefault(found[0], []).append(found[1])
    return groups


def _largest(found: Iterable[RiseShare]) -> list[RiseShare]:
    return sorted(found, key=lambda one: (-one.share, one.name))[:_MOST_NAMED]
