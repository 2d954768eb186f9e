"""The faults: what each does to a cluster, for how long, and whether it was seen to work.

A fault counts as delivered where its effect was observed: the process is gone, or stands still, or
a connection that had carried data was reset, or data was held or delayed on its way.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.eventually import eventually

FaultKind = Literal["kill", "freeze", "slow", "cut", "partition"]
SEEN_S = 30.0
# Short, longer than the limits of silence, and longer than a lease.
LENGTHS_S = (0.3, 1.0, 2.5, 4.0)
_PULSES, _PULSE_S, _REST_S = 12, 0.08, 0.04


@dataclass(frozen=True)
class Fault:
    """A kind of fault and what it strikes.

    A request that cannot be resumed may end by a fault that `breaks_streams`. A fault that
    `ends_cluster` may end every request.
    """

    kind: FaultKind
    victim: str
    ends_cluster: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.victim}"

    @property
    def breaks_streams(self) -> bool:
        return self.victim in ("router", "client") or self.ends_cluster


class Striker:
    """Kills, freezes and slows processes, for about one of `lengths_s`."""

    def __init__(self, rng: random.Random, lengths_s: Sequence[float] = LENGTHS_S) -> None:
        self._rng = rng
        self._lengths_s = lengths_s

    def length_s(self) -> float:
        """How long a fault lasts."""
        return self._rng.choice(self._lengths_s) * self._rng.uniform(0.7, 1.3)

    async def kill(self, pid: int) -> bool:
        """Kill a process, and wait until it is gone."""
        send(pid, signal.SIGKILL)
        await eventually(lambda: is_gone(pid), SEEN_S)
        return True

    async def freeze(self, pid: int) -> bool:
        """Let a process stand still for a while; False where it did not."""
        return await _stand_still(pid, self.length_s())

    async def slow(self, pid: int) -> bool:
        """Let a process run for a third of a while."""
        seen = False
        for _ in range(_PULSES):
            seen = await _stand_still(pid, _PULSE_S) or seen
            await asyncio.sleep(_REST_S)
        return seen


async def _stand_still(pid: int, length_s: float) -> bool:
    send(pid, signal.SIGSTOP)
    try:
        await eventually(lambda: is_stopped(pid) or is_gone(pid), SEEN_S)
        await asyncio.sleep(length_s)
        return is_stopped(pid)
    finally:
        send(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still after SIGSTOP."""
    return _state(pid) == "T"


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    return _state(pid) in ("", "Z", "X")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone gets none."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
