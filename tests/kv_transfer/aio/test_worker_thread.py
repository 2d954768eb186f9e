"""What a channel's thread tells the event loop, and the buffers that it takes."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from kv_transfer.aio.worker_thread import WorkerThread
from kv_transfer.errors import ChannelBroken, LinkBroken
from kv_transfer.frames.staging import LinkStaging, StagingPool
from tests.kv_transfer.rig import eventually


class Calls:
    """Calls in two halves on a worker; what was heard of them, in turn."""

    def __init__(self):
        self.worker = WorkerThread("calls")
        self.heard = []

    def begin(self, result, *, waits=None, fails=False, urgent=False, ahead=2):
        def end():
            if waits is not None:
                assert waits.wait(10)
            if fails:
                raise ChannelBroken(str(result))
            return result

        def then(value, error):
            self.heard.append(value if error is None else error.message)

        self.worker.begin(lambda: end, then, ahead, urgent=urgent)


@pytest.fixture
async def calls():
    made = Calls()
    yield made
    made.worker.stop()


async def test_results_come_in_order_and_all_of_them_when_the_thread_rests(calls):
    for number in range(11):
        calls.begin(number)
    await eventually(lambda: calls.heard == list(range(11)))
    calls.begin(11)
    await eventually(lambda: calls.heard == list(range(12)))


@pytest.mark.parametrize("how", ["urgent", "fails"])
async def test_what_is_urgent_is_heard_while_the_next_call_waits(calls, how):
    go_on = threading.Event()
    calls.begin("before")
    calls.begin("it", **{how: True})
    calls.begin("after", waits=go_on)
    await eventually(lambda: calls.heard == ["before", "it"])
    go_on.set()
    await eventually(lambda: calls.heard == ["before", "it", "after"])


async def test_what_is_not_is_heard_with_others_while_more_is_to_come(calls):
    first, go_on = threading.Event(), threading.Event()
    calls.begin("first", waits=first)
    for number in range(6):
        calls.begin(number)
    calls.begin("last", waits=go_on)
    first.set()
    # Four together; the other three are told with what comes behind them.
    await eventually(lambda: calls.heard == ["first", 0, 1, 2])
    await asyncio.sleep(0.05)
    assert len(calls.heard) == 4
    go_on.set()
    await eventually(lambda: calls.heard == ["first", *range(6), "last"])


async def test_a_call_that_cannot_begin_is_heard_as_an_error(calls):
    def begin():
        raise ChannelBroken("not today")

    calls.worker.begin(begin, lambda value, error: calls.heard.append(error.message), 2)
    calls.begin("next")
    await eventually(lambda: calls.heard == ["not today", "next"])


async def test_a_buffer_that_a_thread_holds_is_quarantined_until_it_gives_it_back():
    pool = StagingPool(100, 4)
    staging = LinkStaging(pool, 2, torch.device("cpu"))
    held = staging.take()
    staging.give_back(staging.take())
    staging.close()
    assert (pool.taken, pool.quarantined) == (1, 1)
    with pytest.raises(LinkBroken):
        staging.take()
    await asyncio.to_thread(staging.give_back, held)
    await eventually(lambda: (pool.taken, pool.quarantined) == (0, 0))


async def test_a_link_has_so_many_buffers_and_the_pool_a_bound():
    pool = StagingPool(100, 3)
    staging = LinkStaging(pool, 2, torch.device("cpu"))
    assert staging.take() is not staging.take()
    with pytest.raises(LinkBroken, match="no staging buffer"):
        staging.take()
    with pytest.raises(LinkBroken, match="3 staging buffers in use"):
        LinkStaging(pool, 2, torch.device("cpu"))
    assert pool.taken == 2
