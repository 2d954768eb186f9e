"""Names the cause of a rise of TTFT. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.console.rise.shares import RiseShare, RiseShares

# The least part of the added time, or load, that is said to be the cause.
_LEAST_SHARE = 0.5
# The stages that are named have so much of the added time together, and each at least so much.
_MOST_OF_IT, _LEAST_STAGE = 0.75, 0.1
# A tenant is hit if it has so many times as much of the added time as of the requests.
_HIT = 1.3
# A replica is slow by itself if it has so much of its pool's added time, and if a request loses so
# many times as much there as on the others. Where requests avoid it, the others have queues and the
# most added time; then it is slow if its prompts take so many times as long as before.
_OF_POOL, _SLOWDOWN = 0.7, 3.0
# A slow replica takes so many times as long as the others, here and where replicas are marked.
SLOW_TIMES = 2.0
# The least requests on it, and on the others, by which it is judged.
_LEAST_REQUESTS = 3


@dataclass(frozen=True, slots=True)
class RiseCause:
    """Where a rise comes from, as far as the requests tell; "" stands for none in particular.

    `stages` have most of the added time, the largest first. `replica` is slow beside the others of
    `pool`. `tenant` sent most of what was sent beyond the usual, and `hit` has much more of the
    added time than of the requests. `reason` is why requests waited in the router; `capped` waited
    for its own cap. `fresh`: most requests were on replicas that are new.
    """

    stages: tuple[str, ...]
    pool: str
    replica: str = ""
    tenant: str = ""
    reason: str = ""
    hit: str = ""
    capped: str = ""
    fresh: bool = False

    @property
    def lost(self) -> bool:
        """Whether the replica was lost, and was not only slow."""
        return bool(self.replica) and self.stages[:1] == ("failover",)


def cause_of(requests: int, shares: RiseShares, *, fresh: bool) -> RiseCause:
    """The cause of a rise of so many requests; the replicas are those of the first pool."""
    tenant = max(shares.tenants, key=lambda one: one.excess, default=None)
    hit = max(shares.tenants, key=lambda one: one.share, default=None)
    replica = _slow_replica(shares.replicas, requests)
    return RiseCause(
        _most(shares.stages),
        shares.pools[0].name if shares.pools else "",
        replica.name if replica is not None else "",
        tenant.name if tenant is not None and tenant.excess >= _LEAST_SHARE else "",
        _first(shares.reasons),
        hit.name if hit is not None and _is_hit(hit) else "",
        _first(shares.capped),
        fresh and replica is None,
    )


def _first(waits: Sequence[RiseShare]) -> str:
    """Of waits the one with much of the added time."""
    return next((one.name for one in waits if one.share >= _LEAST_SHARE / 2), "")


def _is_hit(tenant: RiseShare) -> bool:
    return tenant.share >= max(_LEAST_SHARE, _HIT * (tenant.requests or 0.0))


def _most(stages: Sequence[RiseShare]) -> tuple[str, ...]:
    """The largest stages that have most of the added time together."""
    found: list[str] = []
    share = 0.0
    for one in stages:
        if share < _MOST_OF_IT and one.share >= _LEAST_STAGE:
            found.append(one.name)
            share += one.share
    return tuple(found)


def _slow_replica(replicas: Sequence[RiseShare], requests: int) -> RiseShare | None:
    for one in replicas:
        others = [other for other in replicas if other is not one]
        beside = sum(other.requests or 0.0 for other in others)
        if not others or min(one.requests or 0.0, beside) * requests < _LEAST_REQUESTS:
            continue
        if _has_most(one, others) or _computes_slowly(one, others):
            return one
    return None


def _has_most(one: RiseShare, others: Sequence[RiseShare]) -> bool:
    whole = one.share + sum(max(0.0, other.share) for other in others)
    if one.share < max(_LEAST_SHARE, _OF_POOL * whole) or not one.requests:
        return False
    requests = sum(other.requests or 0.0 for other in others)
    lost = max(0.0, sum(other.share for other in others))
    return one.share * requests >= SLOW_TIMES * lost * one.requests


def _computes_slowly(one: RiseShare, others: Sequence[RiseShare]) -> bool:
    known = [other.slowdown for other in others if other.slowdown is not None]
    if one.slowdown is None or not known:
        return False
    return one.slowdown >= max(_SLOWDOWN, SLOW_TIMES * max(known))
