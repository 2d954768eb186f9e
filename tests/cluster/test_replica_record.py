"""Records of replicas, and the roster of those that are there: both pure."""

from __future__ import annotations

import pytest

from cluster.replica_record import Census, Change, ReplicaLoad, ReplicaRecord, Roster
from tests.cluster.discovery.members import record

# --- records ---


def test_a_record_survives_the_wire_and_a_newer_writer() -> None:
    full = ReplicaRecord("a", "both", "h:1", 7, "m", 1.5, ReplicaLoad(3, 4, 10))
    assert ReplicaRecord.from_json(full.to_json()) == full
    newer = full.to_json()[:-1] + ',"colour":"red"}'
    newer = newer.replace('"waiting":3', '"waiting":3,"mood":1')
    assert ReplicaRecord.from_json(newer) == full


@pytest.mark.parametrize("text", ["", "3", "{}", '{"id":"a","load":[]}', "[]", "nonsense"])
def test_a_broken_record_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ReplicaRecord.from_json(text)


def test_an_unknown_role_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="role"):
        ReplicaRecord.from_json(record().to_json().replace("prefill", "juggle"))


def test_a_replica_of_both_roles_serves_either_pool() -> None:
    both = record(role="both")
    assert both.serves("prefill")
    assert both.serves("decode")
    assert not both.serves("router")
    assert not record(role="decode").serves("prefill")


# --- roster ---


def census(*members: ReplicaRecord, left: tuple[str, ...] = (), born: str | None = None) -> Census:
    return Census(members, frozenset(left), born)


def test_the_roster_reports_joined_and_lost_replicas() -> None:
    roster = Roster(grace_s=1)
    assert roster.update(census(record("a"), record("b")), now=0).joined == (
        record("a"),
        record("b"),
    )
    change = roster.update(census(record("b", generation=2)), now=1)
    assert change.lost == (record("a"), record("b"))
    assert change.joined == (record("b", generation=2),)


def test_the_roster_keeps_members_through_an_outage_and_a_grace_after_it() -> None:
    roster = Roster(grace_s=2)
    roster.update(census(record("a"), record("b")), now=0)
    roster.unreadable(now=1)
    roster.unreadable(now=9)
    assert [member.id for member in roster.members()] == ["a", "b"]
    assert roster.update(census(), now=10) == Change()
    assert roster.update(census(record("b")), now=10.9) == Change()
    assert roster.update(census(record("b")), now=11.1).lost == (record("a"),)
    assert roster.get("a") is None


def test_a_replica_that_left_on_purpose_is_not_kept_by_an_outage() -> None:
    roster = Roster(grace_s=30)
    roster.update(census(record("a"), record("b"), record("c")), now=0)
    roster.unreadable(now=1)
    assert roster.update(census(record("a"), left=("b",)), now=2).lost == (record("b"),)
    assert [member.id for member in roster.members()] == ["a", "c"]
    assert roster.update(census(left=("b", "c")), now=3).lost == (record("c"),)


def test_all_but_one_that_leave_are_no_directory_that_begins_anew() -> None:
    roster = Roster(grace_s=30)
    roster.update(census(record("a"), record("b")), now=0)
    assert len(roster.update(census(left=("a", "b")), now=1).lost) == 2


def test_leases_that_all_end_at_once_are_no_mass_death() -> None:
    roster = Roster(grace_s=6.0)
    both = [record("a"), record("b")]
    roster.update(census(*both), now=0.0)
    assert roster.update(census(), now=1.0).lost == ()
    assert roster.update(census(both[0]), now=2.0).lost == ()
    assert [gone.id for gone in roster.update(census(both[0]), now=8.0).lost] == ["b"]


@pytest.mark.parametrize("first", [[], ["a"]], ids=["nobody yet", "one has beaten"])
def test_a_directory_that_began_anew_keeps_the_members(first: list[str]) -> None:
    roster = Roster(grace_s=6.0)
    roster.update(census(record("a"), record("b"), born="1"), now=0.0)
    anew = census(*map(record, first), born="2" if first else None)
    assert roster.update(anew, now=1.0) == Change()
    assert roster.update(census(record("a"), born="2"), now=2.0) == Change()
    assert [gone.id for gone in roster.update(census(record("a"), born="2"), now=8.0).lost] == ["b"]


def test_the_first_lease_of_all_is_no_new_beginning() -> None:
    roster = Roster(grace_s=6.0)
    roster.update(census(), now=0.0)
    roster.update(census(record("a"), born="1"), now=1.0)
    assert [gone.id for gone in roster.update(census(born="1"), now=2.0).lost] == ["a"]
