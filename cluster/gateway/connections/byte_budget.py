"""Bounds the bytes of all bodies and messages that are half received, over all clients."""

from __future__ import annotations

# The first bytes of each client count nothing, so that large bodies cannot keep small ones out.
_FREE_BYTES = 64 * 1024


class ByteBudget:
    """At most `most_bytes` beside the free bytes of each reservation."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0


class Reservation:
    """What one client holds of a budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._counted = 0

    def resize(self, size: int) -> bool:
        """Hold `size` bytes from now on. False, and no change, if the budget has too few."""
        counted = max(0, size - _FREE_BYTES)
        more = counted - self._counted
        if more > 0 and self._budget.held_bytes + more > self._budget.most_bytes:
            return False
        self._budget.held_bytes += more
        self._counted = counted
        return True

    def release(self) -> None:
        """Hold nothing. Idempotent."""
        self.resize(0)
