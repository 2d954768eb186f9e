"""What is known about the last grammars of each tenant, within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from engine.types.grammar import MAX_GRAMMAR_BYTES, Grammar

_V = TypeVar("_V")

# Bounds: of text; a compiled grammar takes some 300 times its text.
_MOST_BYTES = 8 * MAX_GRAMMAR_BYTES
_MOST_TENANT_BYTES = 2 * MAX_GRAMMAR_BYTES
_MOST_OF_TENANT = 64
_MOST = 512


class GrammarCache(Generic[_V]):
    """A value for each grammar of a tenant; the least recently used ones are forgotten.

    Any thread may use it. One tenant's grammars displace no other tenant's before they fill a
    quarter of the cache.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, Grammar], _V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tenant: str, grammar: Grammar) -> _V | None:
        """The value, if it is known."""
        key = tenant, grammar
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, tenant: str, grammar: Grammar, value: _V) -> None:
        """Remember a value."""
        with self._lock:
            self._values[tenant, grammar] = value
            self._values.move_to_end((tenant, grammar))
            own = [key for key in self._values if key[0] == tenant]
            self._shrink(own, _MOST_TENANT_BYTES, _MOST_OF_TENANT)
            self._shrink(list(self._values), _MOST_BYTES, _MOST)

    def _shrink(self, keys: list[tuple[str, Grammar]], most_bytes: int, most: int) -> None:
        """Forget the first of these keys until the rest is within the bounds."""
        size, count = sum(len(key[1].text) for key in keys), len(keys)
        for key in keys:
            if size <= most_bytes and count <= most:
                return
            del self._values[key]
            size, count = size - len(key[1].text), count - 1
