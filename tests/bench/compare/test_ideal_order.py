"""An ideal order: the requests in time at a speed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bench.compare.ideal_order import ideal
from bench.load.arrivals import Arrival

arrivals = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 20),
        st.sampled_from(["calm", "burst"]),
        st.integers(1, 1024),
        st.just(32),
    ),
    max_size=30,
)


def at(at_s, tokens, phase="burst"):
    return Arrival(at_s, phase, tokens, 32)


def test_the_shortest_goes_first_and_a_late_request_is_refused():
    asked = [at(0, 100), at(0.01, 900), at(0.02, 300), at(0.03, 500)]
    found = ideal(asked, lambda tokens: tokens / 1000, 1.0)
    # 0.1, then 0.4 and 0.9 s; 900 more would take until 1.8.
    assert found == Counter({"burst": 3})


def test_time_without_waiting_requests_is_lost():
    assert ideal([at(0, 500), at(10, 1000)], lambda tokens: tokens / 1000, 1.0).total() == 2
    assert ideal([at(0, 500), at(0.4, 950)], lambda tokens: tokens / 1000, 1.0).total() == 1


@given(arrivals)
def test_at_no_cost_all_are_served_and_at_any_cost_no_more_than_fit(asked):
    assert ideal(asked, lambda _: 0.0, 0.5) == Counter(one.phase for one in asked)
    last_s = max((one.at_s for one in asked), default=0.0)
    assert ideal(asked, lambda _: 0.4, 0.5).total() <= (last_s + 0.5) / 0.4 + 1
