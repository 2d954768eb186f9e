"""Waiting in tests for what happens in its own time. No other test needs to sleep for that."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def eventually(
    condition: Callable[[], Any], within_s: float = 30.0, poll_s: float = 0.002
) -> Any:
    """Wait until the condition holds; returns its value. Raises TimeoutError after `within_s`.

    The condition may be a coroutine function.
    """
    async with asyncio.timeout(within_s):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(poll_s)


def wait_until(condition: Callable[[], Any], within_s: float = 30.0, poll_s: float = 0.05) -> Any:
    """The same without an event loop."""
    until_s = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() >= until_s:
            raise TimeoutError(f"it did not happen within {within_s:g} s")
        time.sleep(poll_s)
    return found
