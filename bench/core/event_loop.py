"""The event loop that routers and replicas have under Ray, for those that a benchmark runs without.

Ray installs uvloop in its worker processes, which `ray[serve]` brings with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, or asyncio's own where that is not installed or Ray is told not to use it."""
    if find_spec("uvloop") is None or os.environ.get("RAY_USE_UVLOOP") == "0":
        return asyncio.new_event_loop()
    make: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return make()


def run(main: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run` does, in such a loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)
