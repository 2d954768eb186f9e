"""Keeping the two threads of a channel on two cores, and unbound afterwards."""

import os

import pytest

from kv_transfer.transports import cpu_affinity


@pytest.fixture
def bound_to(monkeypatch):
    """Every set of cores that the thread was bound to; it runs on core 3 and may use 2 to 4."""
    sets = []
    monkeypatch.setattr(cpu_affinity, "own_core", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: sets[-1] if sets else {2, 3, 4})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: sets.append(set(cores)))
    return sets


def test_a_thread_on_its_peers_core_moves_off_and_is_unbound_again(bound_to):
    cpu_affinity.keep_off(3)
    assert bound_to == [{2, 4}, {2, 3, 4}]


def test_threads_on_two_cores_do_not_move(bound_to):
    assert cpu_affinity.keep_off(2) == 3
    assert bound_to == []


def test_a_thread_with_one_core_does_not_move(bound_to, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    cpu_affinity.keep_off(3)
    assert bound_to == []


def test_a_thread_is_unbound_after_an_error(bound_to):
    with pytest.raises(ValueError, match="inside"), cpu_affinity.not_on(2):
        assert bound_to == [{3, 4}]
        raise ValueError("inside")
    assert bound_to == [{3, 4}, {2, 3, 4}]


def test_an_unknown_peers_core_binds_nothing(bound_to):
    with cpu_affinity.not_on(-1):
        pass
    assert bound_to == []


def test_a_binding_by_other_code_meanwhile_stays(bound_to):
    with cpu_affinity.not_on(2):
        os.sched_setaffinity(0, {4})
    assert bound_to == [{3, 4}, {4}]


def test_a_system_that_hides_its_cores_causes_no_error(bound_to, monkeypatch):
    def forbid(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", forbid)
    assert cpu_affinity.keep_off(3) == 3
    assert bound_to == []


def test_a_system_that_forbids_binding_causes_no_error(bound_to, monkeypatch):
    def forbid(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    cpu_affinity.keep_off(3)


def test_a_thread_keeps_its_allowed_cores():
    mine = os.sched_getaffinity(0)
    assert cpu_affinity.own_core() in mine
    cpu_affinity.keep_off(cpu_affinity.own_core())
    assert os.sched_getaffinity(0) == mine
