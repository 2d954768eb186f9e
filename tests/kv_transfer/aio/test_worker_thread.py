"""The results of a channel's thread, and the buffers that it takes."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from kv_transfer.aio.worker_thread import WorkerThread
from kv_transfer.errors import ChannelBroken, LinkBroken
from kv_transfer.frames.staging import LinkStaging, StagingPool
from tests.kv_transfer.rig import eventually, loop_turns


class Calls:
    """Calls in two halves on a worker, and their results in order."""

    def __init__(self):
        self.worker = WorkerThread("calls")
        self.results = []
        self.inside = threading.Event()

    def begin(self, result, *, waits=None, fails=False, urgent=False, ahead=2):
        def end():
            if waits is not None:
                self.inside.set()
                assert waits.wait(10)
            if fails:
                raise ChannelBroken(str(result))
            return result

        def then(value, error):
            self.results.append(value if error is None else error.message)

        self.worker.begin(lambda: end, then, ahead, urgent=urgent)


@pytest.fixture
async def calls():
    made = Calls()
    yield made
    made.worker.stop()


async def test_results_arrive_in_order_and_all_of_them_when_the_thread_is_idle(calls):
    for number in range(11):
        calls.begin(number)
    await eventually(lambda: calls.results == list(range(11)))
    calls.begin(11)
    await eventually(lambda: calls.results == list(range(12)))


@pytest.mark.parametrize("how", ["urgent", "fails"])
async def test_an_urgent_result_or_an_error_arrives_while_the_next_call_waits(calls, how):
    go_on = threading.Event()
    calls.begin("before")
    calls.begin("it", **{how: True})
    calls.begin("after", waits=go_on)
    await eventually(lambda: calls.results == ["before", "it"])
    go_on.set()
    await eventually(lambda: calls.results == ["before", "it", "after"])


async def test_other_results_arrive_together_while_more_calls_are_queued(calls):
    first, go_on = threading.Event(), threading.Event()
    calls.begin("first", waits=first)
    assert await asyncio.to_thread(calls.inside.wait, 10)
    calls.inside.clear()
    for number in range(6):
        calls.begin(number)
    calls.begin("last", waits=go_on)
    first.set()
    # Four together; the other three arrive with the result behind them.
    await eventually(lambda: calls.results == ["first", 0, 1, 2])
    assert await asyncio.to_thread(calls.inside.wait, 10)
    await loop_turns(2)
    assert len(calls.results) == 4
    go_on.set()
    await eventually(lambda: calls.results == ["first", *range(6), "last"])


async def test_a_call_that_cannot_begin_gives_an_error(calls):
    def begin():
        raise ChannelBroken("not today")

    calls.worker.begin(begin, lambda value, error: calls.results.append(error.message), 2)
    calls.begin("next")
    await eventually(lambda: calls.results == ["not today", "next"])


async def test_a_buffer_that_a_thread_uses_is_quarantined_until_it_is_given_back():
    pool = StagingPool(100, 4)
    staging = LinkStaging(pool, 2, torch.device("cpu"))
    buffer = staging.take()
    staging.give_back(staging.take())
    staging.close()
    assert (pool.taken, pool.quarantined) == (1, 1)
    with pytest.raises(LinkBroken):
        staging.take()
    await asyncio.to_thread(staging.give_back, buffer)
    await eventually(lambda: (pool.taken, pool.quarantined) == (0, 0))


async def test_a_link_and_the_pool_have_bounded_buffers():
    pool = StagingPool(100, 3)
    staging = LinkStaging(pool, 2, torch.device("cpu"))
    assert staging.take() is not staging.take()
    with pytest.raises(LinkBroken, match="no staging buffer"):
        staging.take()
    with pytest.raises(LinkBroken, match="3 staging buffers in use"):
        LinkStaging(pool, 2, torch.device("cpu"))
    assert pool.taken == 2
