"""Admission at the speed of a GPU: none is refused that a device on paper computes in time.

Forecasts count passes, which keeps three faults away. A new replica would refuse prompts that come
at once. Many short prompts in a pass would make all prompts seem free, so that a burst behind them
would be admitted and come late. The device would need more passes.
"""

from __future__ import annotations

import pytest

from tests.cluster.admission.burst import Call
from tests.cluster.admission.device_burst import DeviceBurst


@pytest.mark.parametrize("seed", [0, 1])
def test_a_burst_within_the_speed_of_the_device_is_served(seed):
    """300 prompts of 544 tokens in 3 s are 54,400 tokens a second, and half a second is left."""
    found = DeviceBurst(seed=seed).run()
    assert (found.refused, found.late) == (0, 0)
    assert found.passes < 105


@pytest.mark.parametrize(("warmed", "refused"), [(True, range(1)), (False, range(5, 20))])
def test_the_first_prompts_of_a_replica_are_judged_by_its_warm_up(warmed, refused):
    """20 prompts at once, which are 220 ms of work; by the guess they would be 2.3 s."""
    found = DeviceBurst(count=20, within_s=0.01, warmed=warmed).run()
    assert found.refused in refused and found.late == 0


class AfterShortPrompts(DeviceBurst):
    """600 prompts of 16 tokens within 0.3 s, and then 200 of 544 tokens, of 2.2 s of work."""

    def _arrivals(self) -> list[Call]:
        short = [Call(n, 0.0005 * n, 16, 0.0005 * n) for n in range(600)]
        return [*short, *(Call(600 + n, 0.35 + 0.0005 * n, 544, 0.35) for n in range(200))]


def test_many_short_prompts_in_a_pass_do_not_make_long_prompts_free():
    found = AfterShortPrompts().run()
    assert found.late <= 4
    assert 120 < found.refused < 175
    assert not any(call.refused for call in found.calls if call.prompt == 16)


def test_a_report_at_the_end_of_a_pass_admits_no_fewer():
    told, timed = (DeviceBurst(count=340, reports_ends=one).run() for one in (True, False))
    assert told.refused <= timed.refused + 3
    assert told.late <= 2
