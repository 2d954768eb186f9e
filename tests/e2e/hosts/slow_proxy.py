"""Forwards TCP, late: `python slow_proxy.py PORT TARGET_PORT FILE`; FILE says by how many seconds.

The file is read anew for each piece, so a road can become slow, and well again, while it is used.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

_PIECE = 1 << 16


async def forward(reader, writer, late_s):
    """Everything from one side to the other; a piece leaves no sooner than the one before it."""
    loop = asyncio.get_running_loop()
    pieces = asyncio.Queue()

    async def write():
        while (piece := await pieces.get()) is not None:
            due_s, data = piece
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            writer.write(data)
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        while data := await reader.read(_PIECE):
            pieces.put_nowait((loop.time() + late_s(), data))
        pieces.put_nowait(None)
        await writing
    except OSError:
        writing.cancel()
    finally:
        writer.close()


async def main(port, target, file):
    """Forward until it is ended."""

    def late_s():
        return float(file.read_text())

    async def connect(reader, writer):
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(
            forward(reader, there_writer, late_s), forward(there_reader, writer, late_s)
        )

    server = await asyncio.start_server(connect, "0.0.0.0", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
