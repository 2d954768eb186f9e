"""One piece at a turn of the loop, in order."""

from __future__ import annotations

import asyncio

from cluster.rpc.fair_dispatch import FairDispatcher


async def test_callbacks_run_in_order_and_other_work_in_between():
    turns, called = FairDispatcher(), []
    for number in range(3):
        turns.add(lambda number=number: called.append(number))
    assert called == []
    seen = []
    while len(called) < 3:
        await asyncio.sleep(0)
        seen.append(len(called))
    assert seen == [1, 2, 3]
    assert called == [0, 1, 2]


async def test_callbacks_may_be_added_meanwhile_and_a_fault_stops_none():
    turns, called, faults = FairDispatcher(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))

    def broken():
        turns.add(lambda: called.append("added"))
        raise RuntimeError

    turns.add(broken)
    turns.add(lambda: called.append("next"))
    while len(called) < 2:
        await asyncio.sleep(0)
    assert called == ["next", "added"]
    assert len(faults) == 1
