"""Who waits is kept off its peer's core, who hears of its own moves off; bound to none after."""

import os

import pytest

from kv_transfer.transports import cpu_affinity as apart


@pytest.fixture
def bound_to(monkeypatch):
    """Every set of cores that the thread was bound to; it runs on core 3 and may use 2 to 4."""
    sets = []
    monkeypatch.setattr(apart, "own_core", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: sets[-1] if sets else {2, 3, 4})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: sets.append(set(cores)))
    return sets


def test_off_the_core_of_the_other_and_free_again(bound_to):
    apart.keep_off(3)
    assert bound_to == [{2, 4}, {2, 3, 4}]


def test_no_move_where_they_are_apart(bound_to):
    assert apart.keep_off(2) == 3
    assert bound_to == []


def test_no_move_where_there_is_one_core_only(bound_to, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    apart.keep_off(3)
    assert bound_to == []


def test_free_again_after_a_failure(bound_to):
    with pytest.raises(ValueError, match="inside"), apart.not_on(2):
        assert bound_to == [{3, 4}]
        raise ValueError("inside")
    assert bound_to == [{3, 4}, {2, 3, 4}]


def test_no_peer_yet_binds_nothing(bound_to):
    with apart.not_on(-1):
        pass
    assert bound_to == []


def test_what_somebody_else_bound_meanwhile_is_left_alone(bound_to):
    with apart.not_on(2):
        os.sched_setaffinity(0, {4})
    assert bound_to == [{3, 4}, {4}]


def test_a_system_that_does_not_tell_the_cores_is_no_fault_of_the_channel(bound_to, monkeypatch):
    def forbid(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", forbid)
    assert apart.keep_off(3) == 3
    assert bound_to == []


def test_a_system_that_forbids_it_is_no_fault_of_the_channel(bound_to, monkeypatch):
    def forbid(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    apart.keep_off(3)


def test_a_thread_runs_on_one_of_its_cores():
    mine = os.sched_getaffinity(0)
    assert apart.own_core() in mine
    apart.keep_off(apart.own_core())
    assert os.sched_getaffinity(0) == mine
