"""A map of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """A map of at most `limit` entries; a further entry removes the oldest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def add(self, key: K, value: V) -> None:
        """Add or replace an entry, which becomes the newest."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Remove an entry; returns its value, or None if there is no entry."""
        return self._entries.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """All entries, the oldest first."""
        return list(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)
