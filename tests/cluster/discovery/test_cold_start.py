"""How long a pool that sleeps takes to wake: measured, and predicted from that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.discovery.cold_start import ColdStarts


def test_a_start_is_measured_and_the_next_one_predicted() -> None:
    starts = ColdStarts(["decode"], guess_s=30)
    assert starts.left_s(["decode"], 0) == 30
    starts.request(["decode"], 10)
    assert starts.left_s(["decode"], 15) == 25
    assert starts.left_s(["decode"], 100) == 3  # late already: some more, never nothing
    starts.observe({"decode": []}, 17)
    assert starts.requested(12) == ["decode"]
    assert starts.requested(16) == []  # nobody asked for five seconds
    starts.observe({"decode": [("d", 1)]}, 18)
    assert starts.usual_s("decode") == 8
    assert starts.requested(18) == []


def test_a_briefly_silent_replica_is_no_measure_of_a_start() -> None:
    starts = ColdStarts(["decode"], guess_s=30)
    starts.observe({"decode": [("d", 1)]}, 0)
    starts.observe({"decode": []}, 1)
    starts.request(["decode"], 1)
    starts.observe({"decode": [("d", 1)]}, 1.5)
    assert starts.usual_s("decode") == 30
    assert starts.requested(1.5) == []  # it is there again all the same
    starts.request(["decode"], 2)
    starts.observe({"decode": [("d", 2)]}, 22)  # the same name, in another life
    assert starts.usual_s("decode") == 20


@given(
    st.floats(0.1, 1e3),
    st.floats(0, 1e4),
    st.sets(st.sampled_from(["prefill", "decode"]), min_size=1),
)
def test_the_rest_of_a_start_is_positive_and_at_most_the_usual(guess_s, later_s, waited) -> None:
    starts = ColdStarts(waited, guess_s)
    starts.request(waited, 0)
    assert 0 < starts.left_s(waited, later_s) <= guess_s
