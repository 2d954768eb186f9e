"""Two routers with one journal, behind connections that can be cut."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from cluster.api import Event, GenerateRequest, ResumeRequest
from cluster.api.event_streams import closing
from cluster.gateway.grpc_server import GrpcServer, start
from tests.cluster.scripted_generator import ScriptedGenerator


class BreakingGenerator(ScriptedGenerator):
    """A router whose calls break after some events each, `times` of them in all."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.after_events, self.times = 0, 0
        self.breaks: Callable[[], object] = lambda: None

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        async with closing(self._breaking(super().generate(request))) as events:
            async for event in events:
                yield event

    async def resume(self, request: ResumeRequest) -> AsyncIterator[Event]:
        async with closing(self._breaking(super().resume(request))) as events:
            async for event in events:
                yield event

    async def _breaking(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        sent = 0
        async with closing(events):
            async for event in events:
                if sent == self.after_events and self.times:
                    break
                yield event
                sent += 1
            if sent != self.after_events or not self.times:
                return
        self.times -= 1
        await asyncio.sleep(0.01)  # for what was sent to arrive
        self.breaks()
        await asyncio.Event().wait()


class CutProxy:
    """A TCP listener before a server; `cut` resets every connection and leaves the listener.

    `hold` lets nothing more through the present connections, as a frozen process.
    """

    def __init__(self, server: asyncio.Server, target: int) -> None:
        self._server, self._target = server, target
        self.port: int = server.sockets[0].getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        self._held: set[asyncio.StreamWriter] = set()
        self._over = asyncio.Event()
        self.connections = 0

    @classmethod
    async def open(cls, target: int) -> CutProxy:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await proxy.serve(reader, writer)

        proxy = cls(await asyncio.start_server(serve, "127.0.0.1", 0), target)
        return proxy

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inward, outward = await asyncio.open_connection("127.0.0.1", self._target)
        both = {writer, outward}
        self._writers |= both
        self.connections += 1
        with suppress(OSError):
            await asyncio.gather(self._pump(reader, outward), self._pump(inward, writer))
        self._writers -= both
        for one in both:
            one.close()

    def cut(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                found = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def hold(self) -> None:
        self._held |= self._writers

    async def close(self) -> None:
        self._server.close()
        self._over.set()
        self.cut()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if writer in self._held:
                await self._over.wait()
                return
            writer.write(data)
            await writer.drain()
        writer.close()


class Routers:
    """Two routers. `addresses` are those of the proxies before them."""

    def __init__(self, generators: list[BreakingGenerator], servers: list[GrpcServer]) -> None:
        self.generators, self.servers = generators, servers
        self.proxies: list[CutProxy] = []
        self.ends: list[asyncio.Task[None]] = []

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{proxy.port}" for proxy in self.proxies]

    def stop(self, number: int) -> None:
        """End this router at once."""
        self.ends.append(asyncio.create_task(self.servers[number].stop(0)))


@asynccontextmanager
async def two_routers() -> AsyncIterator[Routers]:
    first = BreakingGenerator()
    generators = [first, BreakingGenerator(journal=first.journal)]
    routers = Routers(generators, [await start(one) for one in generators])
    routers.proxies = [await CutProxy.open(server.port) for server in routers.servers]
    try:
        yield routers
    finally:
        for proxy in routers.proxies:
            await proxy.close()
        for number in range(2):
            routers.stop(number)
        await asyncio.gather(*routers.ends)
