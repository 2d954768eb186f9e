"""Refused connections are counted by reason, and logged together."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from protos.wire import refusals
from protos.wire.refusals import RefusedConnections
from tests.eventually import eventually


@pytest.fixture(autouse=True)
def at_short_intervals(monkeypatch, caplog):
    monkeypatch.setattr(refusals, "_INTERVAL_S", 0.05)
    caplog.set_level(logging.WARNING)


@pytest.fixture
def counts():
    return Counter()


@pytest.fixture
def refused(counts):
    def count(reason):
        counts[reason] += 1

    return RefusedConnections("http", count)


async def test_many_refusals_are_two_lines(refused, counts, caplog):
    for _ in range(1000):
        refused.add("timeout", "192.0.2.1:7")
    refused.add("url")
    await eventually(lambda: len(caplog.records) == 2)
    first, second = caplog.records
    assert counts == {"timeout": 1000, "url": 1}
    assert (first.timeout, second.timeout, second.url) == (1, 999, 1)
    assert (first.listener, first.last_peer, second.last_peer) == ("http", "192.0.2.1:7", "")


async def test_the_last_refusals_are_logged_at_the_end(refused, caplog):
    for _ in range(3):
        refused.add("timeout")
    for _ in range(2):
        refused.close()
    assert [record.timeout for record in caplog.records] == [1, 2]


async def test_a_port_scan_is_counted_and_not_logged(refused, counts, caplog):
    refused.add("closed")
    refused.close()
    assert counts == {"closed": 1} and not caplog.records
