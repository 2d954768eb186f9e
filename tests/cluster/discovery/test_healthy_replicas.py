"""Which replicas a router trusts after a call to one broke."""

from __future__ import annotations

import time

import pytest

from cluster.discovery.healthy_replicas import SUSPECT_S, HealthyReplicas
from cluster.replica_record import ReplicaLoad, ReplicaRecord


class Reports:
    """Replicas that reported at a time (monotonic); all others are silent."""

    def __init__(self):
        self.at_s = {}

    def silent(self, replica):
        return replica not in self.at_s

    def reported_since(self, replica, since_s):
        return self.at_s[replica] > since_s

    def with_report(self, record):
        return record


class Members:
    def __init__(self, *records):
        self.records = list(records)

    def members(self, role=None):
        return self.records


def decode(name, **load):
    return ReplicaRecord(name, "decode", "127.0.0.1:1", 1, load=ReplicaLoad(**load))


@pytest.fixture
def reports():
    return Reports()


def ids(pools):
    return [one.id for one in pools.healthy("decode")]


def test_a_pool_of_suspects_trusts_the_ones_that_report_again(reports):
    both = decode("d0"), decode("d1")
    pools = HealthyReplicas(Members(*both), reports=reports)
    now_s = time.monotonic()
    reports.at_s = {"d0": now_s - 60, "d1": now_s - 60}
    for one in both:
        pools.suspect(one)
    assert ids(pools) == []
    reports.at_s["d1"] = now_s + 60
    assert ids(pools) == ["d1"]
    del reports.at_s["d1"]
    assert ids(pools) == []


def test_a_suspect_gets_nothing_where_another_replica_is_trusted(reports):
    both = decode("d0"), decode("d1")
    pools = HealthyReplicas(Members(*both), reports=reports)
    reports.at_s = {one.id: time.monotonic() + 60 for one in both}
    pools.suspect(both[0])
    assert ids(pools) == ["d1"]


def test_a_stalled_suspect_is_not_back(reports):
    stalled = decode("d0", stalled=True)
    pools = HealthyReplicas(Members(stalled), reports=reports)
    reports.at_s = {"d0": time.monotonic() + 60}
    pools.suspect(stalled)
    assert ids(pools) == []


def test_a_suspect_is_trusted_after_a_while_without_a_report():
    now_s = 0.0
    pools = HealthyReplicas(Members(decode("d0")), clock=lambda: now_s)
    pools.suspect(decode("d0"))
    assert ids(pools) == []
    now_s = SUSPECT_S
    assert ids(pools) == ["d0"]
