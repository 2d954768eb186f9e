"""A TCP proxy whose cable can be cut: connections stay open and nothing moves any more."""

from __future__ import annotations

import asyncio

HOST = "127.0.0.1"


class Proxy:
    """Forwards to `port` until `cut`; what is connected after `mend` is forwarded again."""

    def __init__(self, port):
        self.target = port
        self.server = None
        self.pumps = set()
        self.closing = asyncio.Event()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.connect, HOST, 0)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.closing.set()
        self.cut()
        await asyncio.gather(*self.pumps, return_exceptions=True)

    @property
    def address(self):
        return f"{HOST}:{self.server.sockets[0].getsockname()[1]}"

    def cut(self):
        for pump in self.pumps:
            pump.cancel()

    async def connect(self, reader, writer):
        their_reader, their_writer = await asyncio.open_connection(HOST, self.target)
        pumps = [
            asyncio.create_task(pump(reader, their_writer)),
            asyncio.create_task(pump(their_reader, writer)),
        ]
        self.pumps |= set(pumps)
        try:
            await asyncio.wait(pumps)
            if any(pump.cancelled() for pump in pumps):
                # Cut: neither side notices before its own limits.
                await self.closing.wait()
        finally:
            for side in (writer, their_writer):
                side.close()
            self.pumps -= set(pumps)


async def pump(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
