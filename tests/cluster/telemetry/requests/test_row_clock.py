"""The clock of rows: the wall clock's at the start, however busy the machine was then."""

from __future__ import annotations

from itertools import count

from cluster.telemetry.requests.row_clock import epoch_s


def test_a_process_that_is_held_up_between_two_readings_tells_no_earlier_time():
    held_up = (0.05 if number % 3 == 0 else 0.0 for number in count())
    assert epoch_s(lambda: 1000.0, lambda: 10.0 + next(held_up)) == 990.0
