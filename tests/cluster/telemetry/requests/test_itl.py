"""The ITL of a stream."""

from __future__ import annotations

from array import array

import pytest

from cluster.telemetry.requests.itl import StreamItl


def test_quantiles_and_the_longest():
    came_s = array("d", [0.0])
    for itl_s in [0.1] * 18 + [0.5, 0.3]:
        came_s.append(came_s[-1] + itl_s)
    found = StreamItl.of(came_s)
    assert found.p50_s == pytest.approx(0.1)
    assert found.p95_s == pytest.approx(0.5)
    assert found.longest_s == pytest.approx(0.5)


def test_a_stream_of_one_event_has_none():
    assert StreamItl.of(array("d", [1.0])) == StreamItl.of(array("d")) == StreamItl()


def test_of_many_times_an_even_part_counts_and_the_longest_is_exact():
    came_s = array("d", (0.01 * n for n in range(50_000)))
    came_s.append(came_s[-1] + 7.0)
    found = StreamItl.of(came_s)
    assert found.p95_s == pytest.approx(0.01)
    assert found.longest_s == pytest.approx(7.0)
