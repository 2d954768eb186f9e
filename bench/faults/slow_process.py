"""Slows a process by stopping it for a share of the time, as a host that is too busy would."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

# One stop and one run. A stop is much shorter than the silence after which a link counts as dead.
_PERIOD_S = 0.2
_LISTENS = "0A"


@asynccontextmanager
async def slowed(pid: int, stopped: float) -> AsyncIterator[None]:
    """Stop the process for that share of the time while the block runs."""
    task = asyncio.create_task(_stop_and_go(pid, stopped))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _stop_and_go(pid: int, stopped: float) -> None:
    with suppress(ProcessLookupError):
        try:
            while True:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(stopped * _PERIOD_S)
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep((1 - stopped) * _PERIOD_S)
        finally:
            os.kill(pid, signal.SIGCONT)


def listener(port: int) -> int:
    """The process of this host that listens on a TCP port; raises LookupError."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    inodes = {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == _LISTENS and int(row[1].rsplit(":", 1)[1], 16) == port
    }
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and inodes & _sockets(process):
            return int(process.name)
    raise LookupError(f"no process listens on port {port}")


def _sockets(process: Path) -> set[str]:
    found = set()
    with suppress(OSError):
        for descriptor in list((process / "fd").iterdir()):
            with suppress(OSError):  # it was closed since
                found.add(str(descriptor.readlink()))
    return found
