"""What each tenant asks of the cluster: requests that ended, run and wait, and its caps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cluster.console.source import Json
from cluster.telemetry.requests.row import RequestRow
from cluster.tenants.need import CONCURRENT, KV_TOKENS, WAITING_TOKENS
from protos.router_pb2 import TenantFigures

# Bound: tenants of one answer; all others are counted together.
MOST_TENANTS = 10
# The caps in the words of the console.
_CAPS: Mapping[str, str] = {
    CONCURRENT: "running",
    WAITING_TOKENS: "waiting tokens",
    KV_TOKENS: "KV tokens",
}


def tenants_of(rows: Iterable[RequestRow]) -> list[TenantFigures]:
    """The requests of each tenant that ended, and their tokens."""
    found: dict[str, TenantFigures] = {}
    for row in rows:
        one = found.setdefault(row.tenant, TenantFigures(tenant=row.tenant))
        one.requests += 1
        one.refused += row.refused_for is not None
        if row.refused_for is None:
            one.tokens += (row.prompt_tokens or 0) + (row.completion_tokens or 0)
    return list(found.values())


def busiest(ended: Iterable[TenantFigures], shares: Json) -> list[TenantFigures]:
    """The tenants with the most tokens, and behind them all others as one.

    `ended` may have a tenant several times, from several routers. `shares` are as `FairShare.shown`
    has them, over all routers. Tenants that ask for nothing are left out.
    """
    sums: dict[str, TenantFigures] = {}
    for one in ended:
        _add(sums.setdefault(one.tenant, TenantFigures(tenant=one.tenant)), one)
    for name, share in shares.items():
        now = TenantFigures(
            running=share["caps"][CONCURRENT]["used"],
            waiting=share["waiting_requests"],
            cap=nearest_cap(share["caps"]),
        )
        if name in sums or now.running or now.waiting:
            _add(sums.setdefault(name, TenantFigures(tenant=name)), now)
    ranked = sorted(sums.values(), key=_rank)
    shown, rest = ranked[:MOST_TENANTS], ranked[MOST_TENANTS:]
    return [*shown, _together(rest)] if rest else shown


def nearest_cap(caps: Json) -> str:
    """The cap of which most is used, in words; "no cap" where the tenant has none."""
    known = [(name, use) for name, use in caps.items() if use["here"] is not None]
    if not known:
        return "no cap"
    name, use = max(known, key=lambda item: item[1]["used"] / max(1, item[1]["here"]))
    return f"{use['used']:,.0f} of {use['here']:,.0f} {_CAPS.get(name, name)}"


def _rank(one: TenantFigures) -> tuple[int, int, str]:
    return -one.tokens, -(one.requests + one.running + one.waiting), one.tenant


def _together(rest: Sequence[TenantFigures]) -> TenantFigures:
    found = TenantFigures(others=len(rest))
    for one in rest:
        _add(found, one)
    found.cap = ""
    return found


def _add(whole: TenantFigures, one: TenantFigures) -> None:
    whole.requests += one.requests
    whole.refused += one.refused
    whole.tokens += one.tokens
    whole.running += one.running
    whole.waiting += one.waiting
    whole.cap = one.cap or whole.cap
