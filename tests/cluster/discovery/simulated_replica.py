"""A replica, its two connections and a router, on a simulated clock in milliseconds.

The replica's event loop stands still at times, and does then at once what was due meanwhile. A
connection keeps the order of its messages, and each message takes a while. So do ticks of the
router, which handles all that came before a tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from cluster.discovery.silent_replicas import SilentReplicas
from cluster.replica_record import ReplicaRecord
from cluster.rpc.server import BEAT_S

RECORD = ReplicaRecord("decode-0", "decode", "a:1", 1)
OTHER = ReplicaRecord("decode-1", "decode", "a:2", 1)
TICK_MS = 100
NEVER = 1 << 40


@dataclass
class Replica:
    """Writes reports every `every_ms` and signs of life by its connection for calls.

    It stands still in `stalls` (begin and length), and writes nothing after `frozen_ms`. Nothing
    that it wrote after `cut_ms` comes by the connection for calls. Messages take `delays_ms`, by
    turns.
    """

    every_ms: int = 250
    stalls: Sequence[tuple[int, int]] = ()
    delays_ms: Sequence[int] = (0,)
    frozen_ms: int = NEVER
    cut_ms: int = NEVER

    def reports(self, until_ms: int) -> list[int]:
        """When reports come."""
        return self._arrivals(self.every_ms, until_ms, self.frozen_ms)

    def beats(self, until_ms: int) -> list[int]:
        """When signs of life come by the connection for calls."""
        return self._arrivals(round(1000 * BEAT_S), until_ms, min(self.frozen_ms, self.cut_ms))

    def _arrivals(self, every_ms: int, until_ms: int, end_ms: int) -> list[int]:
        found, now, delays = [0], 0, cycle(self.delays_ms)
        while True:
            now = self._awake(now + every_ms)
            if now >= min(until_ms, end_ms):
                return found
            found.append(max(found[-1], now + next(delays)))

    def _awake(self, now: int) -> int:
        for begin, length in sorted(self.stalls):
            if begin <= now < begin + length:
                now = begin + length
        return now


@dataclass
class Router:
    """The pools and calls of a router that follows the replica and another, which always speaks.

    `given_up` has the times at which it ended its calls to the replica.
    """

    replica: Replica
    ticks_ms: Sequence[int] = (TICK_MS,)
    given_up: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    _now: int = 0
    _heard: bool = False

    def run(self, until_ms: int) -> Router:
        silent = SilentReplicas(self, self)
        reports = Arrivals(self.replica.reports(until_ms))
        beats = Arrivals(self.replica.beats(until_ms))
        gaps = cycle(self.ticks_ms)
        while self._now < until_ms:
            self._now += next(gaps)
            self._heard = beats.came(self._now)
            silent.tick([(RECORD, reports.came(self._now)), (OTHER, True)])
        return self

    def members(self) -> list[ReplicaRecord]:
        return [RECORD, OTHER]

    def healthy(self, pool: str) -> list[ReplicaRecord]:
        return [RECORD, OTHER] if pool == "decode" else []

    def heard(self, address: str) -> bool:
        return self._heard or address == OTHER.address

    def cut(self, address: str, reason: str) -> bool:
        assert address == RECORD.address
        # The next call makes a new connection, by which the next sign of life comes.
        self.given_up.append(self._now)
        self.reasons.append(reason)
        return True


class Arrivals:
    """Times in order, of which each is told once."""

    def __init__(self, times: Sequence[int]) -> None:
        self._times: Iterator[int] = iter(times)
        self._next = next(self._times, NEVER)

    def came(self, now: int) -> bool:
        """Whether any time came since the last call."""
        found = self._next <= now
        while self._next <= now:
            self._next = next(self._times, NEVER)
        return found
