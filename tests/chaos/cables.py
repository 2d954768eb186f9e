"""Cables between the members: TCP proxies on loopback that can be cut, held and slowed.

A held cable keeps its bytes, as TCP does, and goes on with them. A cut cable resets both ends.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Literal, get_args

from protos.wire.handshake import PREFACE, Purpose

HOST = "127.0.0.1"
_CHUNK = 1 << 16
_NO_LINGER = struct.pack("ii", 1, 0)
_PURPOSES: dict[int, Purpose] = dict(enumerate(get_args(Purpose), start=1))

Kind = Literal["client", "redis", "calls", "reports", "control", "link"]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[], Awaitable[Ends]]


@dataclass(eq=False)
class Wire:
    """One connection: who dialled whom, what for, and the bytes that it carried."""

    dialler: str
    target: str
    kind: Kind
    writers: tuple[asyncio.StreamWriter, ...]
    carried: int = 0

    def abort(self) -> None:
        """Reset both ends."""
        for writer in self.writers:
            socket = writer.get_extra_info("socket")
            with suppress(OSError):  # it may have ended
                socket.setsockopt(SOL_SOCKET, SO_LINGER, _NO_LINGER)
            writer.transport.abort()


@dataclass(eq=False)
class Weather:
    """What happens to the wires that match: they stand still, or each piece takes `delay_s`.

    `met` counts the pieces of data that it held or delayed.
    """

    matches: Callable[[Wire], bool]
    delay_s: float | None = None
    met: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop(self) -> None:
        """Stand in the way of one piece of data."""
        self.met += 1
        if self.delay_s is None:
            await self.over.wait()
        else:
            await asyncio.sleep(self.delay_s)


class Cables:
    """All wires of a cluster. A dialler is known by its process; `pids` has those of members."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        self._pids = pids
        self.wires = set[Wire]()
        self._weather = list[Weather]()
        self._servers = dict[str, asyncio.Server]()
        self._tasks = set[asyncio.Task[None]]()

    async def lay(
        self, target: str, dial: Dial, kind: Kind | None = None, dialler: str = ""
    ) -> str:
        """A cable to `target`; returns its address. Without a kind the first bytes tell it."""

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(target, dial, kind, dialler, (reader, writer))
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # an end is broken, or all cables are cut
            finally:
                writer.transport.abort()
                self._tasks.discard(task)

        server = await asyncio.start_server(connect, HOST, 0)
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        self._servers[address] = server
        return address

    def take_up(self, address: str) -> None:
        """Listen no more at an address: its member is gone."""
        self._servers.pop(address).close()

    def cut(self, matches: Callable[[Wire], bool]) -> int:
        """Reset these wires; returns how many of them had carried data."""
        found = [wire for wire in self.wires if matches(wire)]
        for wire in found:
            wire.abort()
        return sum(wire.carried > 0 for wire in found)

    @contextmanager
    def weather(
        self, matches: Callable[[Wire], bool], delay_s: float | None = None
    ) -> Iterator[Weather]:
        """Hold these wires, or slow them, while the block runs."""
        weather = Weather(matches, delay_s)
        self._weather.append(weather)
        try:
            yield weather
        finally:
            self._weather.remove(weather)
            weather.over.set()

    async def close(self) -> None:
        """Cut everything."""
        for server in self._servers.values():
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(
        self, target: str, dial: Dial, kind: Kind | None, dialler: str, near: Ends
    ) -> None:
        reader, writer = near
        first = b""
        if kind is None:
            first = await reader.readexactly(len(PREFACE) + 1)
            kind = _PURPOSES[first[-1]]
            dialler = self._who(writer.get_extra_info("peername")[1])
        wire = Wire(dialler, target, kind, (writer,))
        await self._pass(wire)
        far_reader, far_writer = await dial()
        wire.writers = (writer, far_writer)
        self.wires.add(wire)
        far_writer.write(first)
        pumps = [
            asyncio.create_task(self._pump(wire, reader, far_writer)),
            asyncio.create_task(self._pump(wire, far_reader, writer)),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            self.wires.discard(wire)
            for pump in pumps:
                pump.cancel()
            far_writer.transport.abort()

    async def _pump(
        self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._pass(wire)
            wire.carried += len(data)
            writer.write(data)
            await writer.drain()
        await self._pass(wire)
        with suppress(OSError):
            writer.write_eof()

    async def _pass(self, wire: Wire) -> None:
        for weather in [*self._weather]:
            if weather.matches(wire):
                await weather.stop()

    def _who(self, port: int) -> str:
        """The member that has a connection from this port; "" for none."""
        socket = f"socket:[{_inode(port)}]"
        for name, pid in self._pids().items():
            if socket in _files(pid):
                return name
        return ""


def _files(pid: int) -> set[str]:
    """What a process has open; nothing of a process that is gone."""
    found = set()
    with suppress(OSError):
        for entry in [*Path(f"/proc/{pid}/fd").iterdir()]:
            with suppress(OSError):
                found.add(str(entry.readlink()))
    return found


def _inode(port: int) -> str:
    wanted = f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(wanted):
            return fields[9]
    return ""


def dial_tcp(port_of: Callable[[], Awaitable[int]]) -> Dial:
    """Dials the port of this host that `port_of` tells."""

    async def dial() -> Ends:
        return await asyncio.open_connection(HOST, await port_of())

    return dial


def dial_unix(url: str) -> Dial:
    """Dials the Unix socket of a `unix://` address."""
    path = re.sub("^unix://", "", url)

    async def dial() -> Ends:
        return await asyncio.open_unix_connection(path)

    return dial
