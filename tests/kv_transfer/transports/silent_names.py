"""Opens a link where the name server never answers; says how often it was asked."""

from __future__ import annotations

import asyncio
import socket

from tests.kv_transfer.rig import linked


async def _main() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 53))
        server.setblocking(False)
        async with linked() as pair:
            await pair.move("t", [1], [2])
        asked = 0
        while True:
            try:
                server.recv(512)
            except BlockingIOError:
                break
            asked += 1
    print(asked)


if __name__ == "__main__":
    asyncio.run(_main())
