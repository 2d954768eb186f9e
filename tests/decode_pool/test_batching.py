"""Static batches, and those with a window: by example, as a policy, and as the scheduler's machine.

The machine is that of the scheduler's own test, so that what holds there holds in every mode.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from decode_pool.batching import Candidate, Continuous, Formed, Queue, make_batching
from engine.kv.block_pool import BlockPool
from tests.decode_pool.scheduling import local_sequence, scheduler, sequence, start, step
from tests.decode_pool.test_scheduler_machine import DecodeMachine

WINDOW_S = 0.625


class Watched(Formed):
    """Checks every batch against what a batch is; `alive` is whom the scheduler still has."""

    def __init__(self, window_s=None):
        super().__init__(window_s)
        self.alive = {}
        self.batch = ()

    def form(self, queue, now):
        over = not self.alive.keys() & set(self.batch)
        due_s = super().form(queue, now)
        owners = [one.owner for one in queue.waiting]
        joining = tuple(owner for owner in owners if self.may_join(owner))
        ends_s = min(one.arrived_s for one in queue.waiting) + (self._window_s or 0.0)
        if not over:
            assert due_s is None and set(joining) <= set(self.batch)
        elif joining:
            # The oldest, as many as there is capacity for, and not before their time.
            assert joining == tuple(owners[: max(1, queue.capacity)])
            assert now >= ends_s or len(owners) >= queue.capacity
            self.batch = joining
        else:
            assert due_s == pytest.approx(ends_s - now) and due_s > 0
        return due_s


class StaticMachine(DecodeMachine):
    """The same in batches."""

    window_s: float | None = None

    def __init__(self):
        self.batching = Watched(self.window_s)
        super().__init__(self.batching)
        self.batching.alive = self.alive

    @rule(later=st.sampled_from([0.0, 0.125, 0.5]))
    def form(self, later):
        self.now += later
        due_s = self.subject.form_batch(self.now)
        assert due_s is None or 0 < due_s <= (self.window_s or 0.0)

    @invariant()
    def nobody_joins_who_is_no_member(self):
        holding = {owner for owner in self.alive if self.pool.blocks_of(owner)}
        assert holding <= set(self.batching.batch)
        assert len(self.batching.batch) <= 4


class WindowMachine(StaticMachine):
    """The same with a window."""

    window_s = WINDOW_S


for machine in (StaticMachine, WindowMachine):
    machine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestStatic = StaticMachine.TestCase
TestWindow = WindowMachine.TestCase


def owners(subject):
    """Who got blocks now: offers that are granted, and prompts of the next pass."""
    granted = [new.owner for new in subject.grant()]
    for owner in granted:
        subject.commit(owner)
    return granted


def test_a_static_batch_runs_until_all_of_it_has_ended():
    subject = scheduler(BlockPool(50), batching=Formed())
    for name, tokens in (("a", 2), ("b", 5)):
        subject.offer(sequence(name, 4, max_tokens=tokens), 0.0)
    assert subject.form_batch(0.0) is None
    assert owners(subject) == ["a", "b"]
    subject.offer(sequence("late", 4, max_tokens=2), 0.0)
    ended = []
    while len(ended) < 2:
        subject.form_batch(0.0)
        assert owners(subject) == []
        ended += [done.owner for done in step(subject)]
    assert ended == ["a", "b"]
    subject.form_batch(0.0)
    assert owners(subject) == ["late"]


def test_in_continuous_mode_the_late_one_joins():
    subject = scheduler(BlockPool(50), batching=Continuous())
    start(subject, sequence("a", 4, max_tokens=9))
    subject.offer(sequence("late", 4), 0.0)
    assert subject.form_batch(0.0) is None
    assert owners(subject) == ["late"]


def test_prompts_of_the_next_batch_are_not_computed_beside_the_running_one():
    subject = scheduler(BlockPool(50), chunk=100, batching=Formed())
    subject.offer_prompt(local_sequence("a", 9, max_tokens=4), 0.0)
    subject.form_batch(0.0)
    subject.offer_prompt(local_sequence("b", 2, max_tokens=1), 0.0)
    seen = []
    while subject.running or subject.waiting:
        subject.form_batch(0.0)
        chunk = subject.schedule_chunk(0.0)
        seen.append((subject.streams, [span.sequence.owner for span in chunk]))
        subject.abandon(chunk)
        step(subject)
    assert (0, ["b"]) in seen
    assert all("b" not in names for streams, names in seen if streams)


def test_a_window_opens_with_the_first_arrival_and_ends_early_when_the_batch_is_full():
    subject = scheduler(BlockPool(50), batch=2, batching=Formed(0.05))
    subject.offer(sequence("a", 4), 1.0)
    assert subject.form_batch(1.0) == pytest.approx(0.05)
    assert subject.form_batch(1.03) == pytest.approx(0.02)
    assert owners(subject) == []
    subject.offer(sequence("b", 4), 1.03)
    subject.offer(sequence("c", 4), 1.03)
    assert subject.form_batch(1.03) is None
    assert owners(subject) == ["a", "b"]
    for name in "ab":
        subject.remove(name)
    # It waited longer than the window already.
    assert subject.form_batch(3.0) is None
    assert owners(subject) == ["c"]


def test_a_batch_is_no_larger_than_the_pool():
    subject = scheduler(BlockPool(6), batching=Formed(5.0))
    for name in "abc":
        subject.offer(sequence(name, 7), 0.0)
    # Two of two blocks each, and one to grow into: with a third it would be full.
    assert subject.form_batch(0.0) is None
    assert owners(subject) == ["a", "b"]


def test_no_blocks_are_granted_early_to_a_request_in_no_batch():
    subject = scheduler(BlockPool(50), batching=Formed())
    assert not subject.grant_early(local_sequence("early", 4))


def test_a_member_that_goes_before_it_began_ends_the_batch():
    subject = scheduler(BlockPool(50), batch=1, batching=Formed())
    subject.offer(sequence("a", 4), 0.0)
    subject.form_batch(0.0)
    subject.remove("a")
    subject.offer(sequence("b", 4), 0.0)
    subject.form_batch(0.0)
    assert owners(subject) == ["b"]


def test_names():
    assert make_batching("continuous", 0.1).continuous
    for name, first in (("static", None), ("window", 0.1)):
        made = make_batching(name, 0.1)
        assert made.form(Queue([Candidate("a", 0.0)], 8), 0.0) == first


def test_a_batch_is_due_when_the_first_window_of_the_waiting_requests_has_ended():
    subject = scheduler(BlockPool(50), batching=Formed(0.5))
    for name, own_s, due_s in (
        ("patient", 2.0, 2.0),
        ("usual", None, 0.5),
        ("hasty", 0.125, 0.125),
    ):
        new = sequence(name, 4)
        new.batch_window_s = own_s
        subject.offer(new, 1.0)
        assert subject.form_batch(1.0) == due_s
    # Who left has no say any more.
    subject.remove("hasty")
    assert subject.form_batch(1.25) == 0.25
    assert subject.form_batch(1.5) is None
    assert owners(subject) == ["patient", "usual"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(1, 15)), min_size=1, max_size=4),
    st.integers(1, 15),
    st.integers(0, 8),
)
def test_a_batch_forms_when_full_or_when_a_window_of_the_waiting_requests_is_over(
    waiting, window_s, capacity
):
    """Of each its age and its own window."""
    now = 16.0
    aged = sorted(waiting, key=lambda one: -one[0])
    queue = Queue(
        [Candidate(str(n), now - age, own) for n, (age, own) in enumerate(aged)], capacity
    )
    left_s = min((own or window_s) - age for age, own in waiting)
    policy = Formed(window_s)
    due_s = policy.form(queue, now)
    assert due_s == (left_s if left_s > 0 and len(waiting) < capacity else None)
    assert policy.may_join("0") == (due_s is None)
    if due_s is not None:
        assert policy.form(queue, now + due_s / 2) == due_s / 2
        assert policy.form(queue, now + due_s) is None and policy.may_join("0")


def test_where_there_are_no_windows_that_of_a_request_means_nothing():
    policy = make_batching("static", 0.1)
    policy.form(Queue([Candidate("a", 0.0, window_s=9.0)], 8), 0.0)
    assert policy.may_join("a")


@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0, 1), st.integers(1, 5)), max_size=40),
    st.floats(0, 0.5),
)
def test_each_request_joins_once_in_order_and_a_batch_never_grows(arrivals, window_s):
    """Without a scheduler: some arrive, a batch forms, its members end after so many looks."""
    policy, waiting, running, joined, now = Formed(window_s), [], [], [], 0.0
    for number, (capacity, pause_s, looks) in enumerate([*arrivals, *[(6, 1.0, 1)] * 90]):
        now += pause_s
        if number < len(arrivals):
            waiting.append((str(number), now))
        if waiting:
            policy.form(Queue([Candidate(*one) for one in waiting], capacity), now)
        new = [name for name, _ in waiting if policy.may_join(name)]
        if new:
            assert not running and len(new) <= capacity
            joined += new
            running = [(name, looks) for name in new]
            waiting = [one for one in waiting if one[0] not in new]
        running = [(name, left - 1) for name, left in running]
        for name in [name for name, left in running if left <= 0]:
            policy.left(name)
        running = [one for one in running if one[1] > 0]
    assert joined == [str(number) for number in range(len(arrivals))]
