"""A short chaos of a `tandem serve`; `make chaos ARGS=--ray` runs the long one."""

from __future__ import annotations

import pytest

from tests.chaos.main import summary
from tests.chaos.ray_target import FAULTS, ray_target
from tests.chaos.record import Record
from tests.chaos.run import Chaos
from tests.chaos.web_clients import Clients

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


async def test_nothing_is_lost_whatever_of_ray_fails():
    outcomes = []
    async with (
        ray_target(lengths_s=(0.3, 2.0)) as target,
        Clients([target.grpc], [target.http]) as clients,
    ):
        chaos = Chaos(target, clients, seed=1, each=2)
        await chaos.prepare()
        numbers = [FAULTS.index(fault) for fault in dict.fromkeys(FAULTS)]
        outcomes += [await chaos.run(number) for number in numbers]
    print(summary([Record.of(one, "") for one in outcomes]))
    assert [f"{one.fault}: {bad}" for one in outcomes for bad in one.bad] == []
    assert [str(one.fault) for one in outcomes if not one.delivered] == []
