"""Bytes per second on each KV link, from the transfers that ended. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

# The time over which a rate is taken.
_OVER_S = 3.0


class LinkRates:
    """Transfers of the last seconds, by sender and receiver. Times are monotonic."""

    def __init__(self) -> None:
        self._moved: deque[tuple[float, str, str, int]] = deque()

    def moved(self, now: float, sender: str, receiver: str, size: int) -> None:
        """Count a transfer of so many bytes."""
        self._moved.append((now, sender, receiver, size))

    def forget(self) -> None:
        """Forget what was counted."""
        self._moved.clear()

    def rates(self, now: float) -> list[dict[str, Any]]:
        """The links that moved something lately, with bytes and transfers per second."""
        while self._moved and self._moved[0][0] <= now - _OVER_S:
            self._moved.popleft()
        sums: dict[tuple[str, str], list[int]] = {}
        for _, sender, receiver, size in self._moved:
            total = sums.setdefault((sender, receiver), [0, 0])
            total[0] += size
            total[1] += 1
        return [
            {
                "from": sender,
                "to": receiver,
                "bytes_per_s": round(size / _OVER_S),
                "transfers_per_s": round(count / _OVER_S, 2),
            }
            for (sender, receiver), (size, count) in sorted(sums.items())
        ]
