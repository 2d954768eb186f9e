"""A memory of the last few things."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """Keys with a value each; beyond `limit` the oldest is forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def add(self, key: K, value: V) -> None:
        """Remember it as the newest."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Its value, which is then forgotten; None if it is not remembered."""
        return self._entries.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """All of them, the oldest first."""
        return list(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)
