"""Says the cause of a rise of TTFT in words: one text for page and terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.console.rise.cause import RiseCause
from cluster.console.rise.shares import RiseShare, RiseShares
from cluster.console.words import STAGE_NAMES
from cluster.display_text import exact_time

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
    "kv_blocks": "The decode pool is nearly full: its KV blocks are taken by answers that run, or "
    "promised to them.",
    "decode_batch": "The decode pool is full: its batches have no slot.",
    "itl": "The decode pool is full: with more streams its steps would be too long.",
    "ttft": "The prefill pool has more prompts than it computes in time.",
    "batch_prompts": "Prompts of the batch lane fill their part of the prefill queues.",
    "starting": "Requests wait for replicas that start.",
    "tenant_concurrent": "Its cap of running requests holds back {tenant}.",
    "tenant_kv": "Its cap of KV tokens holds back {tenant}.",
}
_WAITED_FOR: Mapping[str, str] = {
    "kv_blocks": " for KV blocks",
    "decode_batch": " for a slot of a decode batch",
    "itl": " for shorter decode steps",
    "ttft": " for prefill",
    "starting": " for a replica that starts",
}
_UNNAMED_WAIT = "Requests waited for no replica: the router was late to read and tokenise them."
_NONE_SENT_MORE = "no tenant sent much more than usual"
# The most tenants of a sentence, and the least part of all that was sent more for a further one.
_MOST_SENDERS, _LEAST_EXCESS = 3, 0.2


def facts_of(cause: RiseCause, shares: RiseShares) -> dict[str, str]:
    """The cause by stage, pool, replica and tenant, each in few words."""
    by_stage = {one.name: one.share for one in shares.stages}
    waited = {"admission": _WAITED_FOR.get(cause.reason, "")}
    named = [
        f"{_STAGES.get(one, one)}{waited.get(one, '')} ({_percent(by_stage[one])})"
        for one in cause.stages
    ]
    pools = shares.pools
    return {
        "stage": _listed(named) or "none",
        "pool": f"{cause.pool} ({_percent(pools[0].share)})" if pools else "none",
        "replica": _replica_fact(cause, shares.replicas),
        "tenant": _tenant_fact(cause, shares.tenants),
    }


def sentence_of(
    cause: RiseCause, shares: RiseShares, facts: Mapping[str, str], lengths: Mapping[str, str]
) -> str:
    """The cause in a few sentences; `lengths` are what was longer."""
    where = f"The added time is {facts['stage']}." if cause.stages else ""
    lack = _LACKS.get(cause.reason, "").format(tenant=cause.capped or "a tenant")
    if cause.pool == "router" and cause.stages[:1] == ("admission",) and not cause.reason:
        lack = _UNNAMED_WAIT
    long = [f"{name.capitalize()} were longer: {text}." for name, text in lengths.items()]
    replica = f"{_capital(facts['replica'])}." if facts["replica"] != "none" else ""
    tenant = f"{_capital(facts['tenant'])}."
    if number := len(_senders(shares.tenants)):
        who = "One tenant" if number == 1 else f"{number} tenants"
        tenant = f"{who} sent more: {facts['tenant']}."
    if cause.replica:
        # Which tenant met the replica most says nothing of the cause.
        tenant = tenant if number else f"{_capital(_NONE_SENT_MORE)}."
        happened = "lost" if cause.lost else "slow"
        first = f"One {cause.pool} replica was {happened}: {facts['replica']}."
        said = [first, where, lack, *long, tenant]
    elif cause.tenant and cause.pool != "decode":
        said = [tenant, *long, where, lack, replica]
    else:
        said = [lack, *long, where, replica, tenant]
    return " ".join(one for one in said if one)


def cause_in_short(cause: RiseCause) -> str:
    """The cause of another slow time in a sentence; "" where the requests tell none."""
    told = []
    if cause.stages:
        told.append(
            f"the added time was {_listed([_STAGES.get(one, one) for one in cause.stages])}"
        )
    if cause.replica:
        told.append(f"{cause.replica} was {'lost' if cause.lost else 'slow'}")
    if cause.tenant:
        told.append(f"{cause.tenant} sent more")
    return f"Then {'; '.join(told)}." if told else ""


def _replica_fact(cause: RiseCause, replicas: Sequence[RiseShare]) -> str:
    if not replicas:
        return "none"
    for one in replicas:
        if one.name == cause.replica:
            usual = ", none before"
            if one.usual_s is not None:
                usual = f" instead of {exact_time(one.usual_s)}"
            took, share = exact_time(one.slow_s), _percent(one.share)
            return f"{one.name} ({took} a request{usual}, {share} of the added time)"
    if len(replicas) == 1:
        new = "; it is new" if cause.fresh else ""
        return f"only {replicas[0].name} had requests{new}"
    new = "; most requests were on new ones" if cause.fresh else ""
    return f"none of {len(replicas)} {cause.pool} replicas stands out{new}"


def _senders(tenants: Sequence[RiseShare]) -> list[RiseShare]:
    """The tenants that sent more, less those that hardly count beside the others."""
    found = sorted((one for one in tenants if one.sent), key=lambda one: -one.excess)
    return [one for one in found[:_MOST_SENDERS] if one is found[0] or one.excess >= _LEAST_EXCESS]


def _tenant_fact(cause: RiseCause, tenants: Sequence[RiseShare]) -> str:
    if named := [f"{one.name} ({one.sent})" for one in _senders(tenants)]:
        return _listed(named)
    for one in tenants:
        if one.name == cause.hit:
            hit = f"{one.name} is hit most ({_percent(one.share)} of the added time)"
            return f"{_NONE_SENT_MORE}; {hit}"
    return _NONE_SENT_MORE


def _listed(names: Sequence[str]) -> str:
    return " and ".join(one for one in (", ".join(names[:-1]), *names[-1:]) if one)


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _percent(share: float) -> str:
    return f"{min(1.0, share):.0%}"
