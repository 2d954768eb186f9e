"""Measures how long requests wait at a front end's socket, before this process looks at them.

A busy event loop takes connections and calls late, and nobody counts that time: a socket has no
timestamps, and gRPC tells none. So a front end sends a request to itself again and again, which
waits as a client's does. `ArrivalProbe.arrived` is the time at which a request that is read now
came to the socket, as far as the last probe can tell.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from cluster.api.event_streams import end
from cluster.locked_folder import LockedFolder
from cluster.telemetry.router_metrics import ARRIVAL_LAG
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

_SERVICE = "tandem.internal.v1.Arrival"
# Bound: the time between two probes. One takes half a millisecond of the event loop.
_EVERY_S = 0.25
_PREFIX = "tandem-arrival-"
# A Unix socket's path has at most 107 bytes, of which the folder's own name takes 30.
_MOST_BYTES = 70
# Bound: how long one probe may take before the next one is sent.
_LONGEST_S = 30.0
# Bound: probes that did not come through are logged so often at most.
_LOG_EVERY_S = 60.0


class ArrivalProbe:
    """The wait at one front end's socket, from probes that `send` sends.

    `send` ends when its probe was answered. `sent` and `seen` are called with each probe.
    """

    def __init__(self, front_end: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._front_end = front_end
        self._clock = clock
        self._sent_s: float | None = None
        self._lag_s = 0.0
        self._failures = RareLog(log, "no probe came through", _LOG_EVERY_S, clock)

    @property
    def lag_s(self) -> float:
        """Seconds that a request waits: as the last probe did, or longer if one waits still."""
        if self._sent_s is None:
            return self._lag_s
        return max(self._lag_s, self._clock() - self._sent_s)

    def arrived(self) -> float:
        """When a request that is read now came to the socket (monotonic seconds)."""
        return self._clock() - self.lag_s

    def sent(self) -> None:
        """Note that a probe is on its way."""
        self._sent_s = self._clock()

    def seen(self) -> None:
        """Note that the probe was read, as a request is read."""
        if self._sent_s is not None:
            self._lag_s = self._clock() - self._sent_s
            self._sent_s = None
            ARRIVAL_LAG.observe(self._lag_s, front_end=self._front_end)

    async def follow(self, send: Callable[[], Awaitable[None]]) -> None:
        """Send a probe every quarter of a second, and at once after a longer wait, until cancelled.

        So after a pause of the process a new request is not taken for one that waited.
        """
        while True:
            try:
                async with asyncio.timeout(_LONGEST_S):
                    await send()
            except (OSError, TimeoutError, grpc.aio.AioRpcError):
                self._failures.note({"front_end": self._front_end})
            self._sent_s = None
            await asyncio.sleep(max(0.0, _EVERY_S - self._lag_s))


class GrpcArrivals:
    """Probes a gRPC server, whose calls wait in one queue, whatever connection they come by.

    The probes come by a Unix socket that only this user can open.
    """

    def __init__(self) -> None:
        self.probe = ArrivalProbe("grpc")
        self._folder = LockedFolder.make(_PREFIX, _short_folder())
        # The public port has the method, too, under a name that nobody else knows.
        self._method = secrets.token_hex(16)
        self._task: asyncio.Task[None] | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Have the server take probes; call it before the server's start."""
        handler: Any = grpc.unary_unary_rpc_method_handler(self._answer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {self._method: handler}),)
        )
        server.add_insecure_port(self._address)

    def start(self) -> None:
        """Send probes from now on; the server must have started."""
        self._task = asyncio.create_task(self._run(), name="arrival of gRPC calls")

    async def stop(self) -> None:
        """Send no more probes. Idempotent."""
        if self._task is not None:
            await end([self._task])
        self._folder.remove()

    @property
    def _address(self) -> str:
        return f"unix:{self._folder.path / 'grpc'}"

    def _message(self, _: object) -> bytes:
        self.probe.sent()
        return b""

    async def _answer(self, request: bytes, context: Any) -> bytes:
        self.probe.seen()
        return b""

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(self._address) as channel:
            # The clock starts when the message is made, not when the call's task is.
            method: Any = channel.unary_unary(
                f"/{_SERVICE}/{self._method}", request_serializer=self._message
            )
            await self.probe.follow(lambda: method(None))


class SocketArrivals:
    """Probes how long a new connection and its first bytes wait for the event loop."""

    def __init__(self) -> None:
        self.probe = ArrivalProbe("http")
        self._folder = LockedFolder.make(_PREFIX, _short_folder())
        self._loop = asyncio.get_running_loop()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._read = asyncio.Event()

    @classmethod
    async def start(cls) -> Self:
        """Listen on a Unix socket that only this user can open, and send probes to it."""
        arrivals = cls()
        arrivals._listening.setblocking(False)
        arrivals._listening.bind(arrivals._path)
        arrivals._listening.listen()
        arrivals._task = asyncio.create_task(
            arrivals.probe.follow(arrivals._send), name="arrival of HTTP requests"
        )
        return arrivals

    async def stop(self) -> None:
        """Send no more probes. Idempotent."""
        if self._task is not None:
            await end([self._task])
        if self._reading is not None:
            await end([self._reading])
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._folder.remove()

    @property
    def _path(self) -> str:
        return str(self._folder.path / "socket")

    def _seen(self) -> None:
        self.probe.seen()
        self._read.set()

    async def _send(self) -> None:
        self._read.clear()
        self._loop.add_reader(self._listening, self._accept)
        # The system takes both at once, as it does for a client; this waits for no reader.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            sock.connect(self._path)
            self.probe.sent()
            sock.send(b"x")
            await self._read.wait()

    def _accept(self) -> None:
        """Read the newest connection; the system may still hold those of earlier probes."""
        self._loop.remove_reader(self._listening)
        found = None
        try:
            while True:
                sock, _ = self._listening.accept()
                if found is not None:
                    found.close()
                found = sock
        except BlockingIOError:
            pass
        except OSError:
            # No file is free, which is no wait for the loop: it has come to the connection.
            self._seen()
        if found is not None:
            reader = self._loop.connect_accepted_socket(lambda: _ProbeReader(self._seen), found)
            self._reading = asyncio.create_task(reader)


def _short_folder() -> Path:
    """The folder of temporary files, or one whose path is short enough for a socket."""
    found = Path(tempfile.gettempdir())
    return found if len(os.fsencode(found)) <= _MOST_BYTES else Path("/tmp")


class _ProbeReader(asyncio.Protocol):
    """Reads one probe, and closes its connection."""

    def __init__(self, seen: Callable[[], None]) -> None:
        self._seen = seen
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen()
        if self._transport is not None:
            self._transport.close()
