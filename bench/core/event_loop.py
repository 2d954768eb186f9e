"""The event loop of routers and replicas under Ray, for benchmarks that run them without Ray.

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
    """A loop of uvloop, or of asyncio if uvloop is missing or disabled for Ray."""
    if find_spec("uvloop") is None or os.environ.get("RAY_USE_UVLOOP") == "0":
        return asyncio.new_event_loop()
    make: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return make()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` in such a loop, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)
