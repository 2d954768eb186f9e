"""Large requests are parsed on bounded threads; small ones at once."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from cluster.api.off_loop import MEDIUM_BYTES, MOST_LARGE, SMALL_BYTES, off_loop
from engine.errors import Overloaded


async def test_only_small_requests_stay_on_the_loop():
    here = threading.current_thread()
    assert await off_loop(SMALL_BYTES, threading.current_thread) is here
    medium = await off_loop(SMALL_BYTES + 1, threading.current_thread)
    large = await off_loop(MEDIUM_BYTES + 1, threading.current_thread)
    assert len({here, medium, large}) == 3
    assert await off_loop(MEDIUM_BYTES, threading.current_thread) is medium


async def test_a_full_queue_refuses_with_a_time_to_come_back():
    go = threading.Event()
    waiting = [
        asyncio.create_task(off_loop(MEDIUM_BYTES + 1, lambda: go.wait(60)))
        for _ in range(MOST_LARGE + 1)
    ]
    await asyncio.sleep(0)
    try:
        with pytest.raises(Overloaded) as refused:
            await off_loop(MEDIUM_BYTES + 1, int)
        assert refused.value.retry_after_s
        # A medium request waits for no large one.
        assert await off_loop(MEDIUM_BYTES, int) == 0
    finally:
        go.set()
        await asyncio.gather(*waiting)
    assert await off_loop(MEDIUM_BYTES + 1, int) == 0


async def test_a_cancelled_request_leaves_the_queue_at_once():
    go = threading.Event()
    busy = asyncio.create_task(off_loop(MEDIUM_BYTES + 1, lambda: go.wait(60)))
    await asyncio.sleep(0)

    def wait_with(body):
        return asyncio.create_task(off_loop(MEDIUM_BYTES + 1, lambda: body))

    kept = []
    try:
        for _ in range(3 * MOST_LARGE):
            body = threading.Event()
            kept.append(weakref.ref(body))
            waiting = wait_with(body)
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            del body, waiting
        gc.collect()
        # The last cancel may still be known somewhere.
        assert sum(reference() is not None for reference in kept) <= 1
    finally:
        go.set()
        await busy
