"""Slows a process by stopping it for a share of the time, as a host that is too busy would."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

# One stop and one run. A stop is much shorter than the silence after which a link counts as dead.
_PERIOD_S = 0.2


@asynccontextmanager
async def slowed(pid: int, stopped: float) -> AsyncIterator[None]:
    """Stop the process for that share of the time while the block runs."""
    task = asyncio.create_task(_stop_and_go(pid, stopped))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _stop_and_go(pid: int, stopped: float) -> None:
    with suppress(ProcessLookupError):
        try:
            while True:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(stopped * _PERIOD_S)
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep((1 - stopped) * _PERIOD_S)
        finally:
            os.kill(pid, signal.SIGCONT)
