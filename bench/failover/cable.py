"""A TCP proxy before a replica. A frozen proxy cuts the replica off, and no connection breaks.

    python -m bench.failover.cable PORT

It prints a line with its address, and ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from bench.core.event_loop import run
from cluster.deploy.child_processes import tied

HOST = "127.0.0.1"
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Cable:
    """The address of a proxy, and its process."""

    address: str
    pid: int


def lay(port: int) -> Cable:
    """Start a proxy before that port of this host. It ends with the calling thread."""
    command = tied([sys.executable, "-m", __name__, str(port)])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Cable(json.loads(process.stdout.readline())["address"], process.pid)


async def main(port: int) -> None:
    """Forward connections until this process ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    server = await asyncio.start_server(serve, HOST, 0)
    host, own = server.sockets[0].getsockname()
    print(json.dumps({"address": f"{host}:{own}"}), flush=True)
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    run(main(int(sys.argv[1])))
