"""The ITL of requests that run, read once a tick from the times of their tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub

from cluster.telemetry.requests.row import RequestRow

# A stream without a token for so long stalls.
STALL_S = 1.0


class RunningItl:
    """The ITL of one request. `longest_s` is its longest one so far, 0 before its second token.

    `stall_s` is how long a stream of it has had no token, 0 below `STALL_S`.
    """

    __slots__ = ("_read", "longest_s", "stall_s")

    def __init__(self) -> None:
        self._read: list[int] = []
        self.longest_s = 0.0
        self.stall_s = 0.0

    def read(self, streams: Sequence[Sequence[float]], now: float) -> tuple[float, float]:
        """The longest ITL since the last call, 0 where there was none, behind the time it ended.

        A stall counts before its end, too. `streams` has the times at which tokens of each choice
        came; a choice that has ended has none.
        """
        at, longest_s, stall_s = now, 0.0, 0.0
        self._read += [0] * (len(streams) - len(self._read))
        for number, came_s in enumerate(streams):
            before, count = self._read[number], len(came_s)
            if count > max(1, before):
                times = came_s[max(0, before - 1) : count]
                itl_s = max(map(sub, times[1:], times))
                if itl_s > longest_s:
                    longest_s = itl_s
                    at = now if before else _end_of(itl_s, times)
            if count:
                self._read[number] = count
                stall_s = max(stall_s, now - came_s[-1])
        self.stall_s = stall_s if stall_s >= STALL_S else 0.0
        if self.stall_s > longest_s:
            at, longest_s = now, self.stall_s
        self.longest_s = max(self.longest_s, longest_s)
        return at, longest_s

    def not_read(self, row: RequestRow) -> tuple[float | None, float]:
        """What was not read of a request that ended: its ITL, and the longest one.

        That is the 95th percentile, or a stall at its end, or None where all was read.
        """
        longest_s = max((one.longest_stall_s or 0.0 for one in row.choices), default=0.0)
        if longest_s <= self.longest_s:
            return None, 0.0
        return longest_s if self.longest_s else row.choices[0].itl_p95_s, longest_s


def evenly(ranked: Sequence[float], most: int) -> Sequence[float]:
    """At most so many of the values, which are in ascending order, with the same quantiles."""
    count = len(ranked)
    if count <= most:
        return ranked
    return [ranked[(2 * part + 1) * count // (2 * most)] for part in range(most)]


def _end_of(itl_s: float, times: Sequence[float]) -> float:
    """When an ITL ended that may be long ago."""
    return times[[*map(sub, times[1:], times)].index(itl_s) + 1]


def prominence(
    now: float, received_at: float, ttft_s: float | None, stall_s: float
) -> tuple[float, float]:
    """The order of running requests: the longest wait for a token first, then the newest."""
    waits_s = now - received_at if ttft_s is None else stall_s
    return -waits_s if waits_s >= STALL_S else 0.0, -received_at
