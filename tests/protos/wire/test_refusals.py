"""Refused connections are counted by reason, and logged without port scans."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from protos.wire.refusals import RefusedConnections


@pytest.fixture(autouse=True)
def at_warnings(caplog):
    caplog.set_level(logging.WARNING)


@pytest.fixture
def counts():
    return Counter()


@pytest.fixture
def refused(counts):
    def count(reason):
        counts[reason] += 1

    return RefusedConnections("http", count)


async def test_each_refusal_is_counted_and_the_last_are_logged_at_the_end(refused, counts, caplog):
    for _ in range(3):
        refused.add("timeout", "192.0.2.1:7")
    refused.add("url")
    for _ in range(2):
        refused.close()
    assert counts == {"timeout": 3, "url": 1}
    first, second = caplog.records
    assert (first.timeout, second.timeout, second.url) == (1, 2, 1)
    assert (first.listener, first.last_peer, second.last_peer) == ("http", "192.0.2.1:7", "")


async def test_a_port_scan_is_counted_and_not_logged(refused, counts, caplog):
    refused.add("closed")
    refused.close()
    assert counts == {"closed": 1} and not caplog.records
