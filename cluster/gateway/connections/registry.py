"""The open connections of a front end, and the connection that gives way to a new one.

Only a connection that waits for its client gives way: for headers, for a body, for the next
request. A request that has arrived whole keeps its connection. So idle and slow clients cannot keep
others out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cluster.gateway.connections.byte_budget import ByteBudget
from cluster.gateway.connections.limits import ConnectionLimits
from protos.wire.refusals import RefusedConnections

_MOST_LINGERING = 64


class OpenConnection(Protocol):
    """A connection that can be cut."""

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class OpenSocket(OpenConnection, Protocol):
    """A WebSocket."""

    @property
    def active_s(self) -> float:
        """When the last message came or went, in the clock's seconds."""
        ...


class ConnectionRegistry:
    """Admits, and cuts the connection that has waited longest if there are too many."""

    def __init__(
        self, limits: ConnectionLimits, refusals: RefusedConnections, clock: Callable[[], float]
    ) -> None:
        self.limits = limits
        self.refusals = refusals
        self.unfinished = ByteBudget(limits.unfinished_bytes)
        self._clock = clock
        self._open: set[OpenConnection] = set()
        self._waiting: dict[OpenConnection, None] = {}
        self._sockets: dict[OpenConnection, OpenSocket] = {}
        self._lingering: dict[OpenConnection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: OpenConnection) -> bool:
        """Take a new connection, which waits; cuts another one for it. False where none waits."""
        if len(self._open) >= self.limits.connections and not self._evict():
            return False
        self._open.add(connection)
        self._waiting[connection] = None
        return True

    def wait(self, connection: OpenConnection) -> None:
        """The connection waits for its client from now on."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def work(self, connection: OpenConnection) -> None:
        """A request has arrived whole on the connection."""
        self._waiting.pop(connection, None)

    def join(self, socket: OpenSocket) -> None:
        """Take a WebSocket, which was an admitted connection that left."""
        self._open.add(socket)
        self._sockets[socket] = socket

    def linger(self, connection: OpenConnection) -> None:
        """The connection was refused, and stays until its client has read why."""
        self.leave(connection)
        if len(self._lingering) >= _MOST_LINGERING:
            oldest = next(iter(self._lingering))
            del self._lingering[oldest]
            oldest.abort()
        self._lingering[connection] = None

    def leave(self, connection: OpenConnection) -> None:
        """The connection has ended. Idempotent."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._lingering.pop(connection, None)
        self._sockets.pop(connection, None)

    def _evict(self) -> bool:
        found = next(iter(self._waiting), None) or self._quiet_socket()
        if found is None:
            return False
        self.leave(found)
        self.refusals.add("evicted")
        found.abort()
        return True

    def _quiet_socket(self) -> OpenSocket | None:
        before_s = self._clock() - self.limits.quiet_s
        quiet = [socket for socket in self._sockets.values() if socket.active_s < before_s]
        return min(quiet, key=lambda socket: socket.active_s, default=None)
