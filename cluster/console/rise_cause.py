"""Names the cause of a rise of TTFT, and says it in words: one text for page and terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.console.rise_shares import RiseShare
from cluster.console.words import STAGE_NAMES
from cluster.display_text import rounded_time

# The least part of the added time, or load, that is said to be the cause.
_LEAST_SHARE = 0.5
# A replica is slow by itself if it has so much of its pool's added time, and if a request loses so
# many times as much there as on the others. Where requests avoid it, the others have queues and the
# most added time; then it is slow if its prompts take so many times as long as before.
_OF_POOL, _TIMES_OTHERS, _SLOWDOWN = 0.7, 2.0, 3.0
# The least requests on it, and on the others, by which it is judged.
_LEAST_REQUESTS = 3
# The stages as parts of a sentence.
_STAGES: Mapping[str, str] = {
    **STAGE_NAMES,
    "admission": f"the {STAGE_NAMES['admission']}",
    "prefill_queue": f"the {STAGE_NAMES['prefill_queue']}",
    "prefill": f"{STAGE_NAMES['prefill']} itself",
    "first_flush": "the way of the first token to the client",
}
# What a wait in the router says of a pool.
_LACKS: Mapping[str, str] = {
    "kv_blocks": "The decode pool is nearly full: its KV blocks are taken by answers that run.",
    "decode_batch": "The decode pool is full: its batches have no slot.",
    "itl": "The decode pool is full: with more streams its steps would be too long.",
    "ttft": "The prefill pool has more prompts than it computes in time.",
    "batch_prompts": "Prompts of the batch lane fill their part of the prefill queues.",
    "starting": "Requests wait for replicas that start.",
    "tenant_concurrent": "A tenant is at its cap of running requests.",
    "tenant_kv": "A tenant is at its cap of KV tokens.",
}
_WAITED_FOR: Mapping[str, str] = {
    "kv_blocks": " for KV blocks",
    "decode_batch": " for a slot of a decode batch",
    "itl": " for shorter decode steps",
    "ttft": " for prefill",
    "starting": " for a replica that starts",
}
_NONE_SENT_MORE = "no tenant sent much more than usual"


@dataclass(frozen=True, slots=True)
class RiseCause:
    """Where a rise comes from, as far as the requests tell; "" stands for none in particular.

    `stages` have most of the added time, the largest first. `replica` is slow beside the others of
    `pool`. `tenant` sent more than usual, and `hit` has much more of the added time than of the
    requests. `reason` is why requests waited in the router. `alike`: several replicas of the pool
    have requests, and none of them is slow beside the others.
    """

    stages: tuple[str, ...]
    pool: str
    replica: str = ""
    tenant: str = ""
    reason: str = ""
    hit: str = ""
    alike: bool = False


def cause_of(
    requests: int,
    stages: Sequence[RiseShare],
    pools: Sequence[RiseShare],
    replicas: Sequence[RiseShare],
    tenants: Sequence[RiseShare],
    reasons: Sequence[RiseShare],
) -> RiseCause:
    """The cause of a rise of so many requests; `replicas` are those of the first pool."""
    reason = next((one.name for one in reasons if one.share >= _LEAST_SHARE / 2), "")
    tenant = max(tenants, key=lambda one: one.excess, default=None)
    sent_more = tenant is not None and tenant.excess >= _LEAST_SHARE
    replica = _slow_replica(replicas, requests)
    hit = max(tenants, key=lambda one: one.share, default=None)
    return RiseCause(
        _most(stages),
        pools[0].name if pools else "",
        replica.name if replica is not None else "",
        tenant.name if tenant is not None and sent_more and replica is None else "",
        reason,
        hit.name if hit is not None and _is_hit(hit) else "",
        replica is None and len(replicas) > 1,
    )


def _is_hit(tenant: RiseShare) -> bool:
    return tenant.share >= max(_LEAST_SHARE, 1.3 * (tenant.requests or 0.0))


def _most(stages: Sequence[RiseShare]) -> tuple[str, ...]:
    """The largest stages that have three quarters of the added time together."""
    found: list[str] = []
    share = 0.0
    for one in stages:
        if share < 0.75 and one.share >= 0.1:
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
    return one.share * requests >= _TIMES_OTHERS * lost * one.requests


def _computes_slowly(one: RiseShare, others: Sequence[RiseShare]) -> bool:
    known = [other.slowdown for other in others if other.slowdown is not None]
    if one.slowdown is None or not known:
        return False
    return one.slowdown >= max(_SLOWDOWN, _TIMES_OTHERS * max(known))


def facts_of(
    cause: RiseCause,
    stages: Sequence[RiseShare],
    pools: Sequence[RiseShare],
    replicas: Sequence[RiseShare],
    tenants: Sequence[RiseShare],
) -> dict[str, str]:
    """The cause by stage, pool, replica and tenant, each in few words."""
    shares = {one.name: one.share for one in stages}
    waited = {"admission": _WAITED_FOR.get(cause.reason, "")}
    named = [
        f"{_STAGES.get(one, one)}{waited.get(one, '')} ({_percent(shares[one])})"
        for one in cause.stages
    ]
    return {
        "stage": _listed(named) or "none",
        "pool": f"{cause.pool} ({_percent(pools[0].share)})" if pools else "none",
        "replica": _replica_fact(cause, replicas),
        "tenant": _tenant_fact(cause, tenants),
    }


def sentence_of(cause: RiseCause, facts: Mapping[str, str]) -> str:
    """The cause in a few sentences."""
    where = f"The added time is {facts['stage']}."
    lack = _LACKS.get(cause.reason, "")
    alike = f"It is the same on {facts['replica']}." if cause.alike else ""
    if cause.replica:
        said = [f"One {cause.pool} replica was slow: {facts['replica']}.", where]
    elif cause.tenant and cause.pool != "decode":
        said = [f"One tenant sent more: {facts['tenant']}.", where, lack, alike]
    else:
        said = [lack, where, alike]
    if not cause.tenant:
        tenant = facts["tenant"]
        said.append(f"{tenant[0].upper()}{tenant[1:]}.")
    elif cause.pool == "decode":
        said.append(f"One tenant sent more: {facts['tenant']}.")
    return " ".join(one for one in said if one)


def _replica_fact(cause: RiseCause, replicas: Sequence[RiseShare]) -> str:
    if not replicas:
        return "none"
    for one in replicas:
        if one.name == cause.replica:
            usual = "" if one.usual_s is None else f" instead of {rounded_time(one.usual_s)}"
            took, share = rounded_time(one.slow_s), _percent(one.share)
            return f"{one.name} ({took} a request{usual}, {share} of the added time)"
    if len(replicas) == 1:
        return f"{replicas[0].name}, the only one with requests"
    number = "both" if len(replicas) == 2 else f"all {len(replicas)}"
    return f"{number} {cause.pool} replicas"


def _tenant_fact(cause: RiseCause, tenants: Sequence[RiseShare]) -> str:
    for one in tenants:
        if one.name == cause.tenant and one.load is not None:
            return f"{one.name} ({one.load:.1f} times its usual prompt tokens)"
        if one.name == cause.tenant:
            return f"{one.name} (it sent nothing before)"
    for one in tenants:
        if one.name == cause.hit:
            hit = f"{one.name} is hit most ({_percent(one.share)} of the added time)"
            return f"{_NONE_SENT_MORE}; {hit}"
    return _NONE_SENT_MORE


def _listed(names: Sequence[str]) -> str:
    return " and ".join(one for one in (", ".join(names[:-1]), *names[-1:]) if one)


def _percent(share: float) -> str:
    return f"{min(1.0, share):.0%}"
