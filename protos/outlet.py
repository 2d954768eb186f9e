"""What a pool's servicer writes its events to: one call's share of the stream to a router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protos.calls_pb2 import CallEvent

# Makes the event that is due now of what was collected so far; None: nothing any more.
Collect = Callable[[], CallEvent | None]


class Outlet(Protocol):
    """Where one call's events go. Nothing here waits, so a slow router never slows a step."""

    def put(self, event: CallEvent) -> None:
        """Send the event with the next message, after those put before. `call` is filled in."""
        ...

    def ready(self, collect: Collect, due_s: float = 0.0) -> None:
        """Have `collect` called for a message that leaves once it is `due_s` (time.monotonic).

        A message that leaves earlier is not waited for; an earlier `due_s` replaces a later one.
        """
        ...
