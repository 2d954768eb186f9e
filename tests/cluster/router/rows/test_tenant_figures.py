"""The figures of tenants over many rows and routers: the busiest, and all others together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.router.rows.tenant_figures import MOST_TENANTS, busiest, nearest_cap, tenants_of
from cluster.telemetry.requests.row import RequestRow


def row(tenant="acme", tokens=10, refused_for=None):
    outcome = "ok" if refused_for is None else "Refused"
    return RequestRow(
        *("r", "chat", "v", outcome, tenant),
        refused_for=refused_for,
        prompt_tokens=tokens,
        completion_tokens=None if refused_for else 5,
    )


def share(running=0, waiting=0, most=100):
    uses = {"concurrent": (running, most), "waiting_tokens": (0, 1000), "kv_tokens": (0, None)}
    caps = {name: {"used": used, "here": cap, "cap": cap} for name, (used, cap) in uses.items()}
    return {"weight": 1.0, "served": 0.0, "waiting_requests": waiting, "caps": caps}


def test_requests_that_ended_run_and_wait_stand_beside_each_other():
    rows = [row(), row(), row(refused_for="ttft"), row("other", tokens=100)]
    shares = {"acme": share(running=3, waiting=2), "new": share(waiting=4), "idle": share()}
    other, acme, new = busiest(tenants_of(rows), shares)
    assert (acme.tenant, acme.requests, acme.refused, acme.tokens) == ("acme", 3, 1, 30)
    assert (acme.running, acme.waiting, acme.cap) == (3, 2, "3 of 100 running")
    assert (other.tenant, other.tokens, other.running, other.cap) == ("other", 105, 0, "")
    assert (new.tenant, new.requests, new.waiting) == ("new", 0, 4)


def test_all_but_the_busiest_are_counted_together():
    rows = [row(f"t{number}", tokens=number) for number in range(MOST_TENANTS + 7)]
    *shown, rest = busiest(tenants_of(rows), {"t0": share(running=2)})
    assert [one.tenant for one in shown[:2]] == ["t16", "t15"]
    assert (len(shown), rest.others, rest.requests, rest.running) == (MOST_TENANTS, 7, 7, 2)
    assert (rest.tokens, rest.cap) == (sum(range(7)) + 7 * 5, "")


def test_the_cap_of_which_most_is_used_is_named():
    caps = share(running=5, most=10)["caps"]
    assert nearest_cap(caps) == "5 of 10 running"
    caps["kv_tokens"] = {"used": 9000, "here": 10000, "cap": 20000}
    assert nearest_cap(caps) == "9,000 of 10,000 KV tokens"
    assert nearest_cap({"kv_tokens": {"used": 9, "here": None, "cap": None}}) == "no cap"


ROWS = st.lists(
    st.builds(row, st.sampled_from(["a", "b", "c"]), st.integers(0, 9)),
    max_size=20,
)


@given(ROWS, ROWS)
def test_two_routers_have_the_figures_of_all_their_rows(mine, theirs):
    apart = [*tenants_of(mine), *tenants_of(theirs)]
    assert busiest(apart, {}) == busiest(tenants_of([*mine, *theirs]), {})
