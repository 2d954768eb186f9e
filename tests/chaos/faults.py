"""The faults: what each does to a cluster, for how long, and whether it was seen to work.

A fault counts as delivered where its effect was observed: the process is gone, or stands still, or
a connection that had carried data was reset, or data was held or delayed on its way.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.chaos.cables import Wire
from tests.chaos.members import Member, Members
from tests.eventually import eventually

FaultKind = Literal["kill", "freeze", "slow", "cut", "partition"]
Victim = Literal["prefill", "decode", "router", "redis", "link", "calls", "client", "directory"]

PROCESSES: tuple[Victim, ...] = ("prefill", "decode", "router", "redis")
# Kinds of connections: between replicas, router to replica, client to router, and to Redis.
WIRES: dict[Victim, str] = {
    "link": "link",
    "calls": "calls",
    "client": "client",
    "directory": "redis",
}
_SEEN_S = 10.0
# Short, longer than the limits of silence, and longer than a lease.
LENGTHS_S = (0.3, 1.0, 2.5, 4.0)
_PULSES, _PULSE_S, _REST_S = 12, 0.08, 0.04
_DELAYS_S = (0.01, 0.05, 0.2)


@dataclass(frozen=True)
class Fault:
    """A kind of fault and what it strikes."""

    kind: FaultKind
    victim: Victim

    def __str__(self) -> str:
        return f"{self.kind} {self.victim}"

    @property
    def breaks_streams(self) -> bool:
        """Whether a request that cannot be resumed may end by it."""
        return self.victim in ("router", "client")


FAULTS: tuple[Fault, ...] = (
    *(Fault(kind, victim) for kind in ("kill", "freeze", "slow") for victim in PROCESSES),
    *(Fault(kind, victim) for kind in ("slow", "cut", "partition") for victim in WIRES),
    *(Fault("partition", victim) for victim in ("prefill", "decode")),
)


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


class Injector:
    """Strikes a cluster, with faults that last for about one of `lengths_s`."""

    def __init__(
        self, found: Members, rng: random.Random, lengths_s: Sequence[float] = LENGTHS_S
    ) -> None:
        self._found = found
        self._rng = rng
        self._lengths_s = lengths_s

    async def strike(self, fault: Fault, member: Member | None) -> bool:
        """Inject a fault, let it last, and heal; returns whether it was delivered.

        A process that ended is started again. `member` is the victim, if it is a replica or router.
        """
        if fault.victim in PROCESSES:
            if fault.kind == "partition":
                assert member is not None
                name = member.name
                return await self._hold(lambda wire: name in (wire.dialler, wire.target))
            return await self._strike_process(fault, member)
        kind = WIRES[fault.victim]

        def matches(wire: Wire) -> bool:
            return wire.kind == kind

        if fault.kind == "cut":
            return self._found.cables.cut(matches) > 0
        delay_s = self._rng.choice(_DELAYS_S) if fault.kind == "slow" else None
        return await self._hold(matches, delay_s)

    async def _strike_process(self, fault: Fault, member: Member | None) -> bool:
        pid = self._found.redis.pid if member is None else member.pid
        if fault.kind == "kill":
            return await self._kill(pid, member)
        if fault.kind == "freeze":
            return await self._freeze(pid, self._length_s())
        seen = [await self._freeze(pid, _PULSE_S, _REST_S) for _ in range(_PULSES)]
        return any(seen)

    async def _kill(self, pid: int, member: Member | None) -> bool:
        _signal(pid, signal.SIGKILL)
        if member is None:
            redis = self._found.redis
            await eventually(lambda: is_gone(pid), _SEEN_S)
            await asyncio.sleep(self._rng.uniform(0, 2))
            redis.revive()
            return True
        await asyncio.wait_for(member.gone.wait(), _SEEN_S)
        await eventually(lambda: is_gone(pid), _SEEN_S)
        await self._found.replace(member)
        return True

    async def _freeze(self, pid: int, length_s: float, rest_s: float = 0.0) -> bool:
        _signal(pid, signal.SIGSTOP)
        try:
            await eventually(lambda: is_stopped(pid), _SEEN_S)
            await asyncio.sleep(length_s)
            return is_stopped(pid)
        finally:
            _signal(pid, signal.SIGCONT)
            await asyncio.sleep(rest_s)

    async def _hold(self, matches: Callable[[Wire], bool], delay_s: float | None = None) -> bool:
        with self._found.cables.weather(matches, delay_s) as weather:
            await asyncio.sleep(self._length_s())
        return weather.met > 0

    def _length_s(self) -> float:
        return self._rng.choice(self._lengths_s) * self._rng.uniform(0.7, 1.3)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
