"""Faults of a `tandem serve` on this machine, and of the Ray that it started.

Serve's own proxies are not there to be struck: `tandem serve` starts Serve without them, and
requests go to the routers' ports.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import torch
import yaml

from bench.systems.server_process import free_port
from cluster.client.admin_client import fetch_status
from cluster.config.endpoints import ENDPOINTS
from engine.errors import TandemError
from protos import router_pb2
from tests import tiny
from tests.chaos.faults import LENGTHS_S, Fault, Striker, is_gone
from tests.chaos.target import OnState
from tests.e2e.serving import Serving, serve
from tests.eventually import eventually

HOST = "127.0.0.1"
ROLES = {"prefill": 2, "decode": 2, "router": 2}
# Words in the command of each of Ray's processes and of Redis.
_COMMANDS = {
    "gcs": "/gcs_server ",
    "raylet": "/raylet/raylet ",
    "controller": "ray::ServeController",
    "dashboard": "/dashboard/dashboard.py",
    "agent": "ray::DashboardAgent",
    "redis": "redis-server",
}
_PROXIES = ("ProxyActor", "haproxy")
# Of these the cluster has no other, and Ray starts none in their place.
_LAST = ("raylet", "agent")
_OFTEN = ("gcs", "controller", "prefill", "decode", "router", "redis")
FAULTS: tuple[Fault, ...] = (
    *(Fault(kind, victim) for kind in ("kill", "freeze") for victim in _OFTEN),
    *(Fault("freeze", victim) for victim in ("raylet", "agent", "dashboard")),
) * 3 + (
    Fault("kill", "dashboard"),
    *(Fault("kill", victim, ends_cluster=True) for victim in _LAST),
)
_WHOLE_S, _IDLE_S, _ENDED_S = 120.0, 60.0, 90.0
_POLL_S = 0.2


class RayTarget:
    """A cluster of the tiny model, with the files of its start in `folder`."""

    faults: Sequence[Fault] = FAULTS
    moments: Sequence[str] = ("decoding", "finishing")

    def __init__(self, folder: Path, lengths_s: Sequence[float] = LENGTHS_S) -> None:
        (folder / "tiny").mkdir()
        self.model: torch.nn.Module = tiny.make(folder / "tiny")
        self._folder = folder
        self._lengths_s = lengths_s
        self.grpc, self.http = _free(), _free()
        self._stack = ExitStack()
        self._why = ""

    async def start(self) -> None:
        """Start the cluster, on the ports that it had."""
        (self._folder / "config.yaml").write_text(yaml.safe_dump(_config()))
        arguments = {
            "--model": str(self._folder / "tiny"),
            "--dtype": "float32",
            "--config": str(self._folder / "config.yaml"),
            "--grpc-port": self.grpc.rpartition(":")[2],
            "--port": self.http.rpartition(":")[2],
        }
        flat = [word for pair in arguments.items() for word in pair]
        starting = serve(*flat, folder=self._folder, level="info")
        self._serving: Serving = await asyncio.to_thread(self._stack.enter_context, starting)
        assert not [pid for word in _PROXIES for pid in self._running(word)]

    async def close(self) -> None:
        """End the cluster."""
        await asyncio.to_thread(self._stack.close)

    def listen(self, on_state: OnState) -> None:
        """The states of requests are not told from within Ray."""

    async def calm(self) -> None:
        await self._whole(())
        if left := await self.leaked():
            raise RuntimeError(left)

    async def strike(self, fault: Fault, places: Mapping[str, str], rng: random.Random) -> bool:
        striker, victim = Striker(rng, self._lengths_s), fault.victim
        name, pid = await self._victim(victim, rng)
        if pid is None:
            return False
        if fault.kind == "freeze":
            return await striker.freeze(pid)
        below = self._serving.below()
        delivered = await striker.kill(pid)
        if fault.ends_cluster:
            await self._end(below)
        elif victim == "router":
            ports = self._serving.pids_of
            await eventually(lambda: len(ports(self.grpc) - {pid}) == 2, _WHOLE_S, 0.3)
            await self._whole(())
        elif victim in ROLES:
            await self._whole((name,))
        elif victim != "dashboard":
            await eventually(lambda: set(self._running(_COMMANDS[victim])) - {pid}, _WHOLE_S, 0.1)
            await self._whole(())
        return delivered

    async def leaked(self) -> str:
        why, self._why = self._why, ""
        if why:
            return why
        try:
            await eventually(self._idle, _IDLE_S, _POLL_S)
        except TimeoutError:
            return f"leaked: {[_held(one) for one in (await self._status()).replicas]}"
        return ""

    async def _victim(self, role: str, rng: random.Random) -> tuple[str, int | None]:
        """The id and the process of a victim; None where there is none."""
        if role == "router":  # both have one address
            return "", rng.choice(sorted(self._serving.pids_of(self.grpc)))
        if role in ROLES:
            some = [one for one in (await self._status()).replicas if one.role == role]
            one = rng.choice(sorted(some, key=lambda one: one.id))
            return one.id, self._serving.pid_of(one.address)
        pids = self._running(_COMMANDS[role])
        return "", rng.choice(pids) if pids else None

    async def _end(self, below: set[int]) -> None:
        """Wait for the end of `tandem serve`, which must leave nothing, and start it again."""
        process = self._serving.process
        try:
            await eventually(lambda: process.poll() is not None, _ENDED_S, _POLL_S)
            await eventually(lambda: all(map(is_gone, below)), _ENDED_S, _POLL_S)
        except TimeoutError:
            left = [pid for pid in below if not is_gone(pid)]
            self._why = f"tandem serve did not end: {process.poll()}, {len(left)} processes"
        await self.close()
        await self.start()
        await self._whole(())

    async def _whole(self, without: Sequence[str]) -> None:
        """Wait until all replicas are there and healthy, and these ids are not."""

        async def whole() -> bool:
            found = (await self._status()).replicas
            there = Counter(one.role for one in found if one.healthy and not one.leaving)
            return there == Counter(ROLES) and not {one.id for one in found} & set(without)

        await eventually(whole, _WHOLE_S, _POLL_S)

    async def _idle(self) -> bool:
        return not any(_held(one)[1] for one in (await self._status()).replicas)

    async def _status(self) -> router_pb2.StatusResponse:
        """What a router knows; asked again where one has just been struck."""

        async def asked() -> router_pb2.StatusResponse | None:
            with suppress(TandemError):
                return await fetch_status(self.grpc)
            return None

        found: router_pb2.StatusResponse = await eventually(asked, _IDLE_S, _POLL_S)
        return found

    def _running(self, word: str) -> list[int]:
        """The cluster's processes with that word in their command."""
        found = {pid: _command(pid) for pid in self._serving.below()}
        return sorted(pid for pid, command in found.items() if word in f"{command} ")


@asynccontextmanager
async def ray_target(lengths_s: Sequence[float] = LENGTHS_S) -> AsyncIterator[RayTarget]:
    """A cluster, started and ended."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        target = RayTarget(Path(folder), lengths_s)
        try:
            await target.start()
            yield target
        finally:
            await target.close()


def _held(one: router_pb2.ReplicaStatus) -> tuple[str, int]:
    """A replica, and how many requests and blocks it holds."""
    blocks = one.blocks
    held = blocks.used + blocks.leased + blocks.quarantined + blocks.orphaned
    return one.id, one.running + one.waiting + held


def _config() -> dict[str, object]:
    """A small cluster. However slow the machine is, nothing is refused for it."""
    patient = {"ttft_budget_ms": 600_000, "itl_budget_ms": 600_000, "max_output_tokens": 1900}
    return {
        "endpoints": {
            name: patient | {"lane": one.lane, "stream": one.stream}
            for name, one in ENDPOINTS.items()
        },
        "router": {"replicas": 2, "failover_timeout_s": 120},
        "prefill": {"replicas": 2, "chunk_tokens": 128, "local_prefill_tokens": 24},
        "decode": {"replicas": 2},
        "kv": {"blocks": 600},
    }


def _free() -> str:
    """An address of this host with a port that is free."""
    return f"{HOST}:{free_port()}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
