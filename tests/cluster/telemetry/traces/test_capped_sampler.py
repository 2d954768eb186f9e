"""Which requests are traced."""

from __future__ import annotations

import pytest

from cluster.telemetry.traces.capped_sampler import CappedSampler


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def chosen(sampler, requests, parent=None):
    return sum(sampler.chooses(1, parent=parent) for _ in range(requests))


def test_so_many_traces_begin_in_a_second():
    clock = Clock()
    sampler = CappedSampler(1.0, 5, clock)
    assert chosen(sampler, 20) == 5
    clock.now = 0.4
    assert chosen(sampler, 20) == 2
    clock.now = 100.0
    assert chosen(sampler, 20, parent=True) == 5


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_client_s_flag_goes_before_the_share(share):
    sampler = CappedSampler(share, 50, Clock())
    assert sampler.chooses(1, parent=True)
    assert not sampler.chooses(1, parent=False)


def test_a_share_of_the_others_is_traced():
    sampler = CappedSampler(0.25, 1000, Clock())
    assert 200 < sum(sampler.chooses(n * 2**54, parent=None) for n in range(1000)) < 300
