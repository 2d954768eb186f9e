"""The longest pause that a task on the event loop had, while work ran on threads of its own."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


class LoopPauses:
    """The longest time between two turns of a task on the event loop.

    `longest_s` counts the time of the loop's own thread on a core. The time that another process or
    another thread took from it is left out, so that the figure is the same on a busy machine.
    `longest_wall_s` counts all.
    """

    def __init__(self) -> None:
        self.longest_s = self.longest_wall_s = 0.0

    async def watch(self) -> None:
        """Take turns until cancelled."""
        while True:
            began_s, wall_s = time.thread_time(), time.monotonic()
            await asyncio.sleep(0.001)
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)
            self.longest_wall_s = max(self.longest_wall_s, time.monotonic() - wall_s)


@asynccontextmanager
async def pauses() -> AsyncIterator[LoopPauses]:
    """The pauses of the loop during the block; as in a router, old objects are not collected."""
    gc.freeze()
    found = LoopPauses()
    task = asyncio.create_task(found.watch())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gc.unfreeze()


async def pause_of(works: Sequence[Callable[[], _T]]) -> tuple[LoopPauses, list[_T]]:
    """The pauses while all of these run at the same time on threads, and their results."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(works)) as threads:
        async with pauses() as found:
            runs = [loop.run_in_executor(threads, work) for work in works]
            results = await asyncio.gather(*runs)
    return found, results
