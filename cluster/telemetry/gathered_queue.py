"""A bounded queue from the event loop to one thread, which takes what came meanwhile together.

A put costs the event loop about a microsecond, and wakes the thread for the first item alone.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class GatheredQueue(Generic[Item]):
    """Holds at most `most` items. An item waits for others for `gather_s`."""

    def __init__(self, most: int, gather_s: float) -> None:
        self._most = most
        self._gather_s = gather_s
        self._items: deque[Item] = deque()
        self._some = threading.Event()
        self._ended = threading.Event()

    def put(self, item: Item) -> bool:
        """Add an item; False where there is no room."""
        if len(self._items) >= self._most:
            return False
        self._items.append(item)
        if not self._some.is_set():
            self._some.set()
        return True

    def take(self, timeout_s: float | None = None) -> tuple[list[Item], bool]:
        """The items that wait, and whether they are the last ones; for one thread.

        It waits for the first item for `timeout_s` at most, and for as long as it takes without.
        """
        if self._some.wait(timeout_s):
            self._ended.wait(self._gather_s)
        # An item or an end that comes from here on sets it again.
        self._some.clear()
        last = self._ended.is_set()
        found = [self._items.popleft() for _ in range(len(self._items))]
        return found, last

    def end(self) -> None:
        """Let the thread take what waits at once. Idempotent."""
        self._ended.set()
        self._some.set()
