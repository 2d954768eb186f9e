"""Work done together: its results in order, its first failure alone, on every Python there is."""

from __future__ import annotations

import asyncio

import pytest

from cluster.api.gather import together
from engine.errors import Overloaded


async def after(passes: int, answer: int | Exception) -> int:
    """Answers after so many passes of the event loop."""
    for _ in range(passes):
        await asyncio.sleep(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_results_come_in_order():
    assert await together([after(5, 1), after(0, 2)]) == [1, 2]
    assert await together([after(0, 3)]) == [3]


@pytest.mark.parametrize("others", [0, 1, 3])
async def test_the_first_failure_ends_the_others_and_comes_alone(others):
    ended = []

    async def other() -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    with pytest.raises(Overloaded, match="full"):
        await together([after(3, Overloaded("full")), *(other() for _ in range(others))])
    assert len(ended) == others


async def test_a_failure_within_others_comes_alone():
    nested = together([after(0, Overloaded("full")), after(1000, 1)])
    with pytest.raises(Overloaded):
        await together([nested, after(1000, 1)])


async def test_a_fault_stays_one():
    with pytest.raises(ExceptionGroup) as fault:
        await together([after(0, ValueError("a fault")), after(1000, 1)])
    assert isinstance(fault.value.exceptions[0], ValueError)
