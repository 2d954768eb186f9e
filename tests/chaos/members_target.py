"""Faults of the processes and connections of a cluster without Ray."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tests.chaos.cables import Wire
from tests.chaos.faults import LENGTHS_S, SEEN_S, Fault, Striker
from tests.chaos.members import Member, Members, all_idle
from tests.chaos.target import OnState

_PROCESSES = ("prefill", "decode", "router", "redis")
# Kinds of connections: between replicas, router to replica, client to router, and to Redis.
_WIRES = {"link": "link", "calls": "calls", "client": "client", "directory": "redis"}
FAULTS: tuple[Fault, ...] = (
    *(Fault(kind, victim) for kind in ("kill", "freeze", "slow") for victim in _PROCESSES),
    *(Fault(kind, victim) for kind in ("slow", "cut", "partition") for victim in _WIRES),
    *(Fault("partition", victim) for victim in ("prefill", "decode")),
)
# States of a request at which a fault comes.
MOMENTS = (
    "queued",
    "prefilling",
    "handing over",
    "first token",
    "decoding",
    "recomputing",
    "finishing",
)
_DELAYS_S = (0.01, 0.05, 0.2)
_IDLE_S = 30.0
# Tasks of one kind beyond those of the calm cluster, for calls and connections that open anew.
_TASKS_BESIDE = 24


class MembersTarget:
    """The members of a cluster, with faults that last for about one of `lengths_s`."""

    faults: Sequence[Fault] = FAULTS
    moments: Sequence[str] = MOMENTS

    def __init__(self, found: Members, lengths_s: Sequence[float] = LENGTHS_S) -> None:
        self.model = found.model
        self._found = found
        self._lengths_s = lengths_s
        self._tasks = dict[str, Counter[str]]()

    def listen(self, on_state: OnState) -> None:
        self._found.on_state = on_state

    async def calm(self) -> None:
        await all_idle(self._found, _IDLE_S)
        for member in self._found.living:
            tasks = Counter((await member.load())["tasks"])
            self._tasks[member.role] = self._tasks.get(member.role, Counter()) | tasks

    async def leaked(self) -> str:
        try:
            await all_idle(self._found, _IDLE_S)
        except TimeoutError:
            loads = {one.name: (await one.load())["load"] for one in self._found.living}
            return f"leaked: {loads}"
        for member in self._found.living:
            beside = Counter((await member.load())["tasks"]) - self._tasks[member.role]
            if over := {name: count for name, count in beside.items() if count > _TASKS_BESIDE}:
                return f"leaked tasks in {member.name}: {over}"
        return ""

    async def strike(self, fault: Fault, places: Mapping[str, str], rng: random.Random) -> bool:
        striker = Striker(rng, self._lengths_s)
        if fault.victim == "redis":
            return await self._strike_redis(fault, striker, rng)
        if fault.victim in _PROCESSES:
            name = places.get(fault.victim, "")
            member = self._found.named(name) or rng.choice(self._found.of(fault.victim))
            return await self._strike_member(fault, member, striker)
        kind = _WIRES[fault.victim]

        def matches(wire: Wire) -> bool:
            return wire.kind == kind

        if fault.kind == "cut":
            return self._found.cables.cut(matches) > 0
        delay_s = rng.choice(_DELAYS_S) if fault.kind == "slow" else None
        return await self._hold(matches, striker.length_s(), delay_s)

    async def _strike_member(self, fault: Fault, member: Member, striker: Striker) -> bool:
        if fault.kind == "freeze":
            return await striker.freeze(member.pid)
        if fault.kind == "slow":
            return await striker.slow(member.pid)
        if fault.kind == "partition":
            return await self._hold(
                lambda wire: member.name in (wire.dialler, wire.target), striker.length_s()
            )
        delivered = await striker.kill(member.pid)
        await asyncio.wait_for(member.gone.wait(), SEEN_S)
        await self._found.replace(member)
        return delivered

    async def _strike_redis(self, fault: Fault, striker: Striker, rng: random.Random) -> bool:
        redis = self._found.redis
        if fault.kind == "freeze":
            return await striker.freeze(redis.pid)
        if fault.kind == "slow":
            return await striker.slow(redis.pid)
        delivered = await striker.kill(redis.pid)
        await asyncio.sleep(rng.uniform(0, 2))
        redis.revive()
        return delivered

    async def _hold(
        self, matches: Callable[[Wire], bool], length_s: float, delay_s: float | None = None
    ) -> bool:
        with self._found.cables.weather(matches, delay_s) as weather:
            await asyncio.sleep(length_s)
        return weather.met > 0
