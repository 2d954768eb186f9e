"""A short chaos: each fault at least once, on real processes; `make chaos` runs the long one."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.main import summary
from tests.chaos.members import members
from tests.chaos.members_target import FAULTS, MembersTarget
from tests.chaos.record import Record
from tests.chaos.run import Chaos
from tests.chaos.web_clients import FRONT_ENDS, Clients

# A fault that met nothing, because its requests had ended, is tried again.
TRIES = 4


@pytest.mark.timeout(1200)
async def test_nothing_is_lost_whatever_fails():
    outcomes = []
    async with members() as found, Clients(found.doors, found.http_doors) as clients:
        target = MembersTarget(found, lengths_s=(0.3, 2.0))
        chaos = Chaos(target, clients, seed=1, each=2)
        await chaos.prepare()
        for number, fault in enumerate(FAULTS):
            for attempt in range(TRIES):
                outcome = await chaos.run(number + attempt * len(FAULTS))
                assert outcome.fault == fault
                outcomes.append(outcome)
                if outcome.delivered:
                    break
        errors = found.errors()
    print(summary([Record.of(one, "") for one in outcomes]))
    assert [f"{one.fault}: {bad}" for one in outcomes for bad in one.bad] == []
    assert errors == []
    delivered = Counter(one.fault for one in outcomes if one.delivered)
    assert [str(fault) for fault in FAULTS if not delivered[fault]] == []
    streams = [stream for one in outcomes for stream in one.streams]
    assert {stream.front_end for stream in streams if stream.fate == "exact"} == set(FRONT_ENDS)
    fates = Counter(stream.fate for stream in streams)
    assert fates["exact"] > fates.total() / 2
    assert fates["unjournaled"] <= fates.total() / 50, "Redis is seldom late"
    # The tiny model often has two tokens at nearly the same place; each tie was proved to be one.
    assert fates["tie"] <= fates.total() / 10, "rounding changes few answers"
