"""Moore's algorithm against brute force, and the order of jobs that can all be on time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.edf import most_on_time, shortest_first


@dataclass(frozen=True)
class Job:
    """Whole numbers, so that no rounding decides."""

    length: int
    deadline_s: int
    arrival: int = 0


jobs = st.builds(Job, st.integers(0, 9), st.integers(-5, 30), st.integers(0, 3))


def all_on_time(order, begin_s):
    for job in order:
        begin_s += job.length
        if begin_s > job.deadline_s:
            return False
    return True


def most_by_brute_force(jobs, begin_s):
    """The size of the largest set that some order ends on time."""
    return max(
        size
        for size in range(len(jobs) + 1)
        for chosen in combinations(jobs, size)
        if any(all_on_time(order, begin_s) for order in permutations(chosen))
    )


@settings(deadline=None)
@given(st.lists(jobs, max_size=5), st.integers(-3, 8))
def test_no_larger_set_can_be_on_time(jobs, begin_s):
    kept = most_on_time(jobs, begin_s)
    assert all_on_time(kept, begin_s)
    assert len(kept) == most_by_brute_force(jobs, begin_s)


@given(st.lists(jobs, max_size=40), st.integers(-3, 8))
def test_jobs_that_can_all_be_on_time_are_in_the_order_that_is_chosen(jobs, begin_s):
    kept = most_on_time(jobs, begin_s)
    order = list(shortest_first(kept, begin_s))
    assert all_on_time(order, begin_s)
    assert sorted(map(repr, order)) == sorted(map(repr, kept))
    if order:
        assert order[0].length <= kept[0].length


@given(st.lists(jobs, max_size=20), st.integers(1, 6))
def test_a_unit_of_length_takes_as_long_as_it_is_told(jobs, unit_s):
    longer = [Job(unit_s * job.length, job.deadline_s, job.arrival) for job in jobs]
    kept = most_on_time(jobs, 0, unit_s)
    assert [unit_s * job.length for job in kept] == [job.length for job in most_on_time(longer, 0)]
    order = [job.length for job in shortest_first(kept, 0, unit_s)]
    scaled = [Job(unit_s * job.length, job.deadline_s, job.arrival) for job in kept]
    assert [unit_s * length for length in order] == [j.length for j in shortest_first(scaled, 0)]
