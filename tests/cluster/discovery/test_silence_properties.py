"""What the constants of silence promise, on simulated clocks: no delay is taken for a death."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cluster.discovery.simulated_replica import TICK_MS, Replica, Router

MINUTE_MS = 60_000
# A tick of a router that is late, or that stood still.
TICKS = st.lists(st.integers(TICK_MS, 2 * TICK_MS) | st.integers(TICK_MS, 3000), min_size=1)
EVERY = st.sampled_from([50, 100, 250])


def stalls(longest_ms):
    """Begins and lengths of times in which a loop stands still, with a report between any two."""

    def apart(gaps):
        found, now = [], 0
        for gap, length in gaps:
            found.append((now + gap, length))
            now += gap + length
        return found

    gap = st.integers(600, 5000)
    return st.lists(st.tuples(gap, st.integers(0, longest_ms)), max_size=12).map(apart)


@given(stalls(450), st.lists(st.integers(0, 200), min_size=1), TICKS, EVERY)
@example([(1249, 650)], [0], [TICK_MS], 250)
@settings(max_examples=150, deadline=None)
def test_standing_still_for_650_ms_costs_no_stream(stood, delays, ticks, every):
    """Of the loop and the network together."""
    replica = Replica(every, stood, delays)
    assert not Router(replica, ticks).run(MINUTE_MS).given_up


@given(st.integers(1000, 9000), stalls(200), EVERY)
@settings(max_examples=150, deadline=None)
def test_a_frozen_replica_is_given_up_after_one_second(frozen, stood, every):
    router = Router(Replica(every, stood, frozen_ms=frozen)).run(frozen + 5000)
    # Its last words are up to 200 ms and a report old.
    assert frozen + 550 <= router.given_up[0] <= frozen + 1000 + TICK_MS


@given(stalls(8000), st.sampled_from([250, 50]))
@settings(max_examples=150, deadline=None)
def test_a_slow_replica_is_given_up_seldom(stood, every):
    """Each false alarm of a minute comes after a silence of twice the longest before."""
    router = Router(Replica(every, stood)).run(MINUTE_MS)
    separate = [at for at, before in zip(router.given_up, [-1000, *router.given_up], strict=False)
                if at - before > TICK_MS]  # fmt: skip
    assert len(separate) <= 4  # of 1, 2, 4 and 8 s


@given(stalls(8000), st.lists(st.integers(0, 400), min_size=1), TICKS, EVERY)
@settings(max_examples=150, deadline=None)
def test_a_connection_for_calls_that_lives_is_never_taken_for_a_cut_one(
    stood, delays, ticks, every
):
    router = Router(Replica(every, stood, delays), ticks).run(MINUTE_MS)
    assert not [reason for reason in router.reasons if "reports" in reason]


@pytest.mark.parametrize(("every", "within_ms"), [(50, 1300), (100, 1300), (250, 3100)])
@given(cut=st.integers(1000, 5000))
@settings(deadline=None)
def test_a_cut_connection_for_calls_is_given_up_beside_reports(every, within_ms, cut):
    router = Router(Replica(every, cut_ms=cut)).run(cut + 6000)
    assert cut + 600 <= router.given_up[0] <= cut + within_ms
    assert "reports" in router.reasons[0]
