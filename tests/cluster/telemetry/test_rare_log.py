"""A warning that strangers can cause fills no log, and counts what it leaves out."""

from __future__ import annotations

import logging

from cluster.telemetry.rare_log import RareLog


def test_there_is_one_line_in_a_time_with_the_count_since_the_last(caplog):
    now = [0.0]
    rare = RareLog(logging.getLogger("cluster.rare"), "something", 10.0, lambda: now[0])
    for events in (2, 3, 0):
        rare.note(events)
    now[0] = 10.0
    rare.note(1, {"reason": "why"})
    now[0] = 20.0
    rare.note(0)
    assert [record.count for record in caplog.records] == [2, 4]
    assert caplog.records[1].reason == "why"
