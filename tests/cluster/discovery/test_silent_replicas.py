"""A replica that says nothing: when its calls end, and when they go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.discovery.silent_replicas import ReplicaSilence, SilentReplicas
from cluster.replica_record import ReplicaRecord

DECODE = ReplicaRecord("decode-0", "decode", "a:1", 1)
OTHER = ReplicaRecord("decode-1", "decode", "a:2", 1)
PREFILL = ReplicaRecord("prefill-0", "prefill", "a:3", 1)


def silent_for(silence, ticks):
    for _ in range(ticks):
        silence.tick(heard=False)
    return silence.lost


def test_a_replica_is_lost_after_a_silence_of_one_second():
    silence = ReplicaSilence()
    assert not silent_for(silence, 9)
    assert silent_for(silence, 1)
    silence.tick(heard=True)
    assert not silence.lost


@pytest.mark.parametrize(("stood", "waits"), [(3, 10), (5, 10), (8, 16), (30, 60), (400, 150)])
def test_a_replica_that_spoke_again_gets_twice_its_longest_silence(stood, waits):
    silence = ReplicaSilence()
    silent_for(silence, stood)
    silence.tick(heard=True)
    assert not silent_for(silence, waits - 1)
    assert silent_for(silence, 1)


def test_an_old_silence_counts_no_more():
    silence = ReplicaSilence()
    silent_for(silence, 30)
    for _ in range(601):
        silence.tick(heard=True)
    assert silent_for(silence, 10)


class Site:
    """A router's pools and calls; the connections to `connected` are open."""

    def __init__(self, *healthy):
        self.records, self.talking, self.ended = list(healthy), set(), []
        self.connected = set()
        self.silent = SilentReplicas(self, self)

    def healthy(self, pool):
        return [record for record in self.records if record.serves(pool)]

    def members(self):
        return self.records

    def heard(self, address):
        talks = address in self.talking
        return talks if talks or address in self.connected else None

    def cut(self, address, reason):
        self.ended.append((address, reason))
        return True

    def pass_by(self, ticks, *records, reporting=()):
        for _ in range(ticks):
            self.silent.tick([(one, one in reporting) for one in records])


def test_calls_end_where_neither_reports_nor_events_come():
    site = Site(OTHER, PREFILL)
    site.pass_by(10, DECODE, OTHER, reporting=[OTHER])
    assert site.ended == [("a:1", "nothing was heard for 1.0 s")]


@pytest.mark.parametrize("sign", ["reports", "events"])
def test_either_sign_of_life_keeps_the_calls(sign):
    site = Site(OTHER)
    site.talking = {"a:1"} if sign == "events" else set()
    site.pass_by(200, DECODE, reporting=[DECODE] if sign == "reports" else [])
    assert not site.ended


def test_calls_go_on_until_another_replica_can_take_them():
    """A host that starves all replicas must not cost them their streams."""
    site = Site(DECODE, PREFILL)
    site.pass_by(100, DECODE)
    assert not site.ended
    site.records.append(OTHER)
    site.pass_by(1, DECODE)
    assert [address for address, _ in site.ended] == ["a:1"]


def test_a_replica_of_both_roles_needs_one_that_takes_over_in_both_pools():
    both = replace(DECODE, role="both")
    site = Site(PREFILL)
    site.pass_by(20, both)
    assert not site.ended
    site.records.append(OTHER)
    site.pass_by(1, both)
    assert site.ended


def test_a_replica_that_is_silent_itself_takes_nothing_over():
    """A host that starves two replicas silences both, each for a little longer or shorter."""
    site = Site(OTHER)
    site.pass_by(3, DECODE)
    site.pass_by(8, DECODE, OTHER)
    assert not site.ended
    site.pass_by(1, DECODE, OTHER, reporting=[OTHER])
    assert [address for address, _ in site.ended] == ["a:1"]


def test_calls_end_whose_connection_is_silent_beside_reports():
    """Another connection to the same replica may do, so no other replica is needed."""
    site = Site(DECODE)
    site.connected = {"a:1"}
    site.pass_by(11, DECODE, reporting=[DECODE])
    site.pass_by(5, DECODE)
    assert not site.ended
    site.pass_by(1, DECODE, reporting=[DECODE])
    assert site.ended == [("a:1", "no word of calls in 12 reports")]
    site.pass_by(11, DECODE, reporting=[DECODE])
    assert len(site.ended) == 1, "the next connection has as much time"


def test_reports_beside_no_connection_count_for_none():
    site = Site(DECODE)
    site.pass_by(50, DECODE, reporting=[DECODE])
    site.connected = {"a:1"}
    site.pass_by(11, DECODE, reporting=[DECODE])
    assert not site.ended


def test_a_new_life_begins_without_a_silence():
    site = Site(OTHER)
    site.pass_by(9, DECODE)
    site.pass_by(9, replace(DECODE, generation=2))
    assert not site.ended


def test_the_role_of_today_says_who_must_take_over():
    now = replace(DECODE, role="prefill")
    site = Site(now, OTHER)
    site.pass_by(20, DECODE)
    assert not site.ended
    site.records.append(PREFILL)
    site.pass_by(1, DECODE)
    assert site.ended
