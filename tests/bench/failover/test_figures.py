"""Pauses and stages of streams around a fault."""

from __future__ import annotations

import pytest

from bench.failover.figures import (
    FaultedStream,
    added_pause_s,
    as_series,
    report,
    stages_s,
)

ROUTER = [
    "2026-11-29T00:00:09.000Z warning cluster.router.failover request failed over request_id=b "
    "choice=0 prefill=decode-4 decode=decode-4 waited_s=0.1",
    "2026-11-29T00:00:10.500Z warning cluster.router.failover request failed over request_id=a "
    "choice=0 prefill=decode-4 decode=decode-4 error=ReplicaLost sent=9 waited_s=0.2",
]
DECODE = [
    "2026-11-29T00:00:10.625Z info decode_pool.servicer decode waits request_id=a choice=0",
    "2026-11-29T00:00:10.750Z info decode_pool.servicer stream resumes here request_id=a choice=0",
]
FAULT_S = 1795910410.0
LOGS = {"router-6": ROUTER, "decode-4": DECODE, "prefill-1": []}


def test_the_added_pause_is_the_longest_gap_after_the_fault_less_the_usual_gap():
    assert added_pause_s([0, 1, 2, 3, 10, 11], fault_s=3.5) == 6
    assert added_pause_s([0, 1, 2, 3], fault_s=3.5) == -1
    assert added_pause_s([9.0], fault_s=3.5) == 0


def test_the_stages_are_read_from_the_logs_after_the_fault():
    arrivals = [FAULT_S + after for after in (-1.0, 0.3, 1.5, 1.6)]
    found = stages_s("a", LOGS, FAULT_S, arrivals)
    assert found == pytest.approx((0.3, 0.5, 0.625, 0.75, 1.5), abs=1e-3)
    assert stages_s("b", LOGS, FAULT_S, arrivals) is None
    assert stages_s("c", LOGS, FAULT_S, arrivals) is None


def test_a_report_and_a_series_have_all_streams():
    streams = [FaultedStream(n, True, (0.1, 0.2, 0.3, 0.4, n)) for n in (1.0, 2.0)]
    streams += [FaultedStream(0.5, False), FaultedStream(1.0, True, (0.1, 0.2, 0.3, 0.4, 1.0))]
    assert "exact: 3 of 3 moved streams, 0 of 1 other streams" in report(streams)
    assert "| added pause, moved streams | 1.00 | 1.98 | 2.00 | 3 |" in report(streams)
    assert "| from begun to admitted | 0.10 | 0.10 | 0.10 | 3 |" in report(streams)
    machine = {"commit": "c", "date": "2026-01-02"}
    figures = as_series(streams, "kill, demo", machine, {"runs": 2}).figures
    assert figures["added pause, moved streams, longest"].value == 2
    assert figures["added pause, other streams, p99"].n == 1
    assert figures["next token, p50"].value == 1
    assert figures["exact, moved streams"].value == 1
    nothing = as_series([FaultedStream(0.0, True)], "kill", machine, {}).figures
    assert nothing["exact, other streams"].n == 1 and "noticed, p50" not in nothing
