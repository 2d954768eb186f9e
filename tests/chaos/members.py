"""The processes of a cluster, its Redis and its cables, as a test sees and breaks them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cluster.deploy.embedded_redis import EmbeddedRedis
from protos.wire.secret import made
from tests import tiny
from tests.chaos.cables import Cables, dial_tcp, dial_unix
from tests.chaos.member import Order
from tests.chaos.target import OnState
from tests.eventually import eventually

ROLES = {"prefill": 2, "decode": 2, "router": 2}
_START_S = 120.0
_ANSWER_S = 30.0
# The tokenizer's threads would not outlive a fork.
_FORKS = {"TOKENIZERS_PARALLELISM": "false"}
_ERROR = re.compile(r"\S+ error |Traceback")


@dataclass(eq=False)
class Member:
    """One process. The doors of a router stay when another process takes its place."""

    name: str
    role: str
    door: str
    redis: str
    pid: int = 0
    port: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    http_port: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    writer: asyncio.StreamWriter | None = None
    answers: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that is gone gets none."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def load(self) -> dict[str, Any]:
        """The blocks and requests that the member holds, and its tasks by coroutine."""
        assert self.writer is not None
        while not self.answers.empty():
            self.answers.get_nowait()
        self.writer.write(b"load\n")
        return await asyncio.wait_for(self.answers.get(), _ANSWER_S)


class Members:
    """A cluster of the tiny model. `on_state` hears of each state that a request reaches."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.model = tiny.make(_made(folder / "tiny"))
        made(folder / "secret")
        self.folder = folder
        self.redis = EmbeddedRedis.start()
        self.cables = Cables(lambda: {one.name: one.pid for one in self.living})
        self.living = list[Member]()
        self.doors = list[str]()
        self.http_doors = list[str]()
        self.on_state: OnState = lambda _state, _fields: None
        self._transport = transport
        self._routers = dict[str, Member]()
        self._expected = dict[str, Member]()
        self._started = 0
        self._nursery: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Server | None = None

    async def open(self) -> None:
        """Start all members."""
        control = str(self.folder / "control")
        self._listener = await asyncio.start_unix_server(self._hear, control)
        pipe = asyncio.subprocess.PIPE
        self._nursery = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.member",
            str(self.folder / "tiny"),
            stdin=pipe,
            stdout=pipe,
            env=os.environ | _FORKS,
            start_new_session=True,  # Ctrl-C must not end it before the table
        )
        assert self._nursery.stdout is not None
        await asyncio.wait_for(self._nursery.stdout.readline(), _START_S)
        for number in range(ROLES["router"]):
            for doors, name in ((self.doors, "port"), (self.http_doors, "http_port")):
                dial = dial_tcp(self._door(number, name))
                doors.append(await self.cables.lay(f"door-{number}", dial, "client"))
        roles = [role for role, count in ROLES.items() for _ in range(count)]
        doors = iter(self.doors)
        await asyncio.gather(
            *(self.start(role, next(doors) if role == "router" else "") for role in roles)
        )

    async def start(self, role: str, door: str = "") -> Member:
        """Start a member and wait until it is ready."""
        self._started += 1
        name = f"{role}-{self._started}"
        redis = await self.cables.lay("redis", dial_unix(self.redis.url), "redis", name)
        member = Member(name, role, door, redis)
        if role == "router":
            self._routers[door] = member
        else:
            member.door = await self.cables.lay(name, dial_tcp(lambda: _shielded(member.port)))
        order = Order(
            role,
            name,
            str(self.folder / "control"),
            f"redis://{redis}/0",
            member.door,
            str(self.folder),
            self._transport,
        )
        self._expected[name] = member
        assert self._nursery is not None and self._nursery.stdin is not None
        self._nursery.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        await asyncio.wait_for(member.ready.wait(), _START_S)
        return member

    async def replace(self, member: Member) -> Member:
        """Start another in the place of a member that is gone."""
        self.cables.take_up(member.redis)
        if member.role != "router":
            self.cables.take_up(member.door)
            return await self.start(member.role)
        return await self.start("router", member.door)

    def of(self, role: str) -> list[Member]:
        """The members of a role that live."""
        return [one for one in self.living if one.role == role]

    def named(self, name: str) -> Member | None:
        """The living member of that name."""
        return next((one for one in self.living if one.name == name), None)

    def errors(self) -> list[str]:
        """What all members logged as errors: no fault of another process is one."""
        logs = (path.read_text().splitlines() for path in sorted(self.folder.glob("*.log")))
        return [line for log in logs for line in log if _ERROR.match(line)]

    async def close(self) -> None:
        """End everything."""
        for member in self.living:
            member.signal(signal.SIGKILL)
        if self._nursery is not None and self._nursery.stdin is not None:
            self._nursery.stdin.close()
            await self._nursery.wait()
        await self.cables.close()
        if self._listener is not None:
            self._listener.close()
        self.redis.stop()

    def _door(self, number: int, name: str) -> Callable[[], Any]:
        async def port() -> int:
            member = self._routers[self.doors[number]]
            if member.gone.is_set():
                raise ConnectionRefusedError
            return await _shielded(getattr(member, name))

        return port

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = json.loads(await reader.readline())
        member = self._expected.pop(hello["name"])
        member.pid, member.writer = hello["pid"], writer
        self.living.append(member)
        try:
            while line := await reader.readline():
                self._take(member, json.loads(line))
        except ConnectionError:
            pass
        finally:
            self.living.remove(member)
            member.gone.set()
            writer.close()

    def _take(self, member: Member, message: dict[str, Any]) -> None:
        if "load" in message:
            member.answers.put_nowait(message)
        elif "port" in message:
            member.port.set_result(message["port"])
        elif "ready" in message:
            if member.role == "router":
                member.port.set_result(_port_of(message["ready"]))
                member.http_port.set_result(_port_of(message["http"]))
            member.ready.set()
        else:
            state = message.pop("state")
            self.on_state(state, message | {member.role: member.name})


@asynccontextmanager
async def members(transport: str = "auto") -> AsyncIterator[Members]:
    """A cluster, started and ended."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = Members(Path(folder), transport)
        try:
            await found.open()
            yield found
        finally:
            await found.close()


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def _shielded(port: asyncio.Future[int]) -> int:
    return await asyncio.wait_for(asyncio.shield(port), _START_S)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def all_idle(found: Members, within_s: float) -> None:
    """Wait until no living member holds a request or a block; raises TimeoutError."""

    async def idle() -> bool:
        loads = [(await one.load())["load"] for one in [*found.living]]
        return not any(loads)

    await eventually(idle, within_s, 0.05)
