"""What each stage, pool, replica, tenant and reason has of a rise of TTFT. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from cluster.console.rise.sent_load import SentLoad
from cluster.console.ttft_sample import STAGES, TtftSample

# Bound: shares that are shown, the largest first.
MOST_SHOWN = 6
# The least prompts from which a replica's speed is known.
_LEAST_PROMPTS = 3
_Samples = Sequence[TtftSample]


@dataclass(frozen=True, slots=True)
class RiseShare:
    """What one stage, pool, replica, tenant or reason has of a rise.

    `share` is of the added TTFT. `slow_s` and `usual_s` are the means in the slow time and beside
    it: over all requests, or over those of a tenant, or over those on a replica. `requests` is the
    share of the slow requests. Of a tenant `sent` says how much more it sent, "" where chance
    explains it, and `excess` how much it has of all that was sent beyond the usual. A prefill
    replica has a `slowdown`: the median time of a prompt token over the pool's usual one, None if
    not known.
    """

    name: str
    share: float
    slow_s: float
    usual_s: float | None
    requests: float | None = None
    sent: str = ""
    excess: float = 0.0
    slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class RiseShares:
    """What each part has of a rise, the largest first; `replicas` are those of the first pool.

    `reasons` are of waits in the router, and `capped` of the tenants that waited for their own cap.
    """

    stages: list[RiseShare]
    pools: list[RiseShare]
    replicas: list[RiseShare]
    tenants: list[RiseShare]
    reasons: list[RiseShare]
    capped: list[RiseShare]


def shares_of(slow: _Samples, usual: _Samples, loads: Mapping[str, SentLoad]) -> RiseShares:
    """The shares of the requests of an endpoint in the slow time and beside it."""
    pools = parts(slow, usual, TtftSample.by_pool)
    return RiseShares(
        parts(slow, usual, lambda one: dict(zip(STAGES, one.stages, strict=True))),
        pools,
        on_replicas(slow, usual, pools[0].name),
        of_tenants(slow, usual, loads),
        parts(slow, usual, lambda one: _wait(one, one.waited_for)),
        parts(slow, usual, lambda one: _wait(one, one.tenant if one.capped else "")),
    )


def _wait(one: TtftSample, name: str) -> dict[str, float]:
    return {name: one.stages[0]} if name else {}


def parts(
    slow: _Samples, usual: _Samples, parts_of: Callable[[TtftSample], Mapping[str, float]]
) -> list[RiseShare]:
    """The shares of parts into which each TTFT falls, the largest first."""
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
    return _largest_first(found)


def on_replicas(slow: _Samples, usual: _Samples, pool: str) -> list[RiseShare]:
    """The shares of a pool's replicas: the time that requests spent there, or waited for it."""
    here, before = (
        _by(slow, lambda one: one.in_pool(pool)),
        _by(usual, lambda one: one.in_pool(pool)),
    )
    times = [seconds for group in before.values() for seconds in group]
    usual_s = fmean(times) if times else 0.0
    added_s = len(slow) * (mean_s(slow) - mean_s(usual))
    return _largest_first(
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


def of_tenants(slow: _Samples, usual: _Samples, loads: Mapping[str, SentLoad]) -> list[RiseShare]:
    """The shares of tenants; their loads are of all endpoints, since one tenant delays others."""
    whole = sum(one.beyond for one in loads.values())
    usual_s = mean_s(usual)
    added_s = len(slow) * (mean_s(slow) - usual_s)
    here, before = (_by(group, lambda one: (one.tenant, one.ttft_s)) for group in (slow, usual))
    found = []
    for name in {**here, **loads}:
        times, load = here.get(name, []), loads.get(name)
        unusual = load is not None and load.is_unusual
        found.append(
            RiseShare(
                name,
                sum(seconds - usual_s for seconds in times) / added_s,
                fmean(times) if times else 0.0,
                fmean(before[name]) if name in before else None,
                len(times) / len(slow),
                load.in_words() if load is not None and unusual else "",
                load.beyond / whole if load is not None and unusual else 0.0,
            )
        )
    return sorted(found, key=lambda one: (-max(one.share, one.excess), one.name))


def mean_s(samples: _Samples) -> float:
    """The mean TTFT."""
    return fmean(one.ttft_s for one in samples)


def _by(
    samples: _Samples, value_of: Callable[[TtftSample], tuple[str, float] | None]
) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for one in samples:
        if (found := value_of(one)) is not None:
            groups.setdefault(found[0], []).append(found[1])
    return groups


def _largest_first(found: Iterable[RiseShare]) -> list[RiseShare]:
    return sorted(found, key=lambda one: (-one.share, one.name))
