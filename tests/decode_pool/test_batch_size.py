"""The batch's size against steps whose time grows with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decode_pool.batch_size import BatchSize

BUDGET_S = 0.06


def run(subject, step_s, steps, waiting=1000, part=1.0):
    """That many steps of a batch as large as it may be, or part of it; the limits on the way."""
    limits = []
    for _ in range(steps):
        batch = min(int(part * subject.limit), waiting)
        subject.stepped(batch, step_s(batch))
        limits.append(subject.limit)
    return limits


@given(st.integers(1, 128), st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1))))
def test_the_limit_stays_within_its_bounds(most, steps):
    subject = BatchSize(most, BUDGET_S)
    for batch, seconds in steps:
        subject.stepped(batch, seconds)
        assert min(8, most) <= subject.limit <= most


@given(st.integers(1, 128), st.floats(0.001, 0.05), st.floats(0.0001, 0.01))
def test_the_limit_settles_where_steps_keep_the_budget(most, base_s, each_s):
    subject = BatchSize(most, BUDGET_S)

    def step_s(batch):
        return base_s + batch * each_s

    run(subject, step_s, 400)
    settled = run(subject, step_s, 300)
    fits = [batch for batch in range(1, most + 1) if step_s(batch) <= BUDGET_S]
    best = max(fits, default=1)
    least = min(8, most)  # fewer would make no step faster
    best = max(best, least)
    # It looks up again once in a while, by an eighth.
    assert max(settled) <= best + max(1, best // 8) + 1
    assert min(settled) >= best - 2 * max(1, best // 8) - 1
    assert len(set(settled)) <= 6


def test_the_limit_rises_again_when_steps_get_faster():
    subject = BatchSize(64, BUDGET_S)
    run(subject, lambda batch: 0.002 * batch, 500)
    assert subject.limit <= 30
    run(subject, lambda batch: 0.0005 * batch, 2000)
    assert subject.limit == 64


def test_the_limit_rises_again_while_some_admitted_requests_are_on_their_way():
    subject = BatchSize(64, BUDGET_S)
    run(subject, lambda batch: 0.06 + 0.002 * batch, 500)
    assert subject.limit == 8
    run(subject, lambda batch: 0.02 + 0.0005 * batch, 2000, part=0.8)
    assert subject.limit == 64


def test_the_limit_rises_again_where_half_of_the_admitted_requests_are_prompts():
    subject = BatchSize(64, BUDGET_S)
    run(subject, lambda batch: 0.06 + 0.002 * batch, 500)
    run(subject, lambda batch: 0.001 * batch, 2000, part=0.5)
    assert subject.limit > 40


def test_faster_steps_of_an_idle_neighbour_are_seen_within_a_few_steps():
    subject = BatchSize(32, BUDGET_S)
    run(subject, lambda batch: 3 * (0.01 + 0.001 * batch), 300)
    assert subject.limit <= 12
    run(subject, lambda batch: 0.01 + 0.001 * batch, 48)
    assert subject.limit == 32


def test_a_few_slow_steps_change_nothing():
    subject = BatchSize(64, BUDGET_S)
    for _ in range(20):
        for seconds in (0.02, 0.02, 0.5, 0.02, 0.02, 0.02, 0.3, 0.02):
            subject.stepped(64, seconds)
    assert subject.limit == 64


def test_a_batch_that_is_not_full_says_nothing_about_more():
    subject = BatchSize(64, BUDGET_S)
    run(subject, lambda batch: 0.002 * batch, 500)
    limit = subject.limit
    run(subject, lambda batch: 0.01, 1000, waiting=2)
    assert subject.limit == limit
