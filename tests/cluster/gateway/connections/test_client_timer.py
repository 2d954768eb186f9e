"""A client's deadline: it ends once, can be stopped, and can run again."""

from __future__ import annotations

import asyncio

import pytest

from cluster.gateway.connections.client_timer import ClientTimer
from tests.eventually import eventually

SECONDS = 0.05


@pytest.fixture
async def ended():
    """When the timer called, in seconds of the event loop."""
    return []


@pytest.fixture
async def timer(ended):
    loop = asyncio.get_running_loop()
    return ClientTimer(loop, SECONDS, lambda: ended.append(loop.time()))


async def test_a_timer_that_runs_is_not_begun_anew(timer, ended):
    began_s = asyncio.get_running_loop().time()
    timer.start()
    await asyncio.sleep(SECONDS / 2)
    timer.start()
    await eventually(lambda: ended)
    assert ended[0] - began_s < 1.4 * SECONDS
    await asyncio.sleep(2 * SECONDS)
    assert len(ended) == 1


async def test_a_stopped_timer_calls_nothing(timer, ended):
    timer.start()
    for _ in range(2):
        timer.stop()
    await asyncio.sleep(2 * SECONDS)
    assert not ended


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_timer_runs_again_after_its_end_or_a_stop(timer, ended, stopped):
    timer.start()
    if stopped:
        timer.stop()
    else:
        await eventually(lambda: ended)
        ended.clear()
    timer.start()
    await eventually(lambda: ended)
