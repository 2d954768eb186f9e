"""The interface by which a pool's servicer sends the events of one call to a router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protos.calls_pb2 import CallEvent

# Makes an event of the tokens or reports collected so far; None: there are none.
Collect = Callable[[], CallEvent | None]


class EventSink(Protocol):
    """Takes one call's events. No method waits, so a slow router never slows a step."""

    def put(self, event: CallEvent) -> None:
        """Send the event with the next message, in the order of the calls. Fills in `call`."""
        ...

    def ready(self, collect: Collect, due_s: float = 0.0) -> None:
        """Have `collect` called for a message that leaves at `due_s` (time.monotonic).

        A message that leaves earlier for another reason does not wait. An earlier `due_s` replaces
        a later one.
        """
        ...
