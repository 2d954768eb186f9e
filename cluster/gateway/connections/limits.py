"""The bounds of HTTP and WebSocket connections, and how many may be open."""

from __future__ import annotations

import resource
import socket
from dataclasses import dataclass

_MOST_FILES = 65_536
_LEAST_CONNECTIONS = 16
# Each request has a connection. The other connections are idle, or send their request.
_CONNECTIONS_PER_REQUEST = 4
# Bound: bytes of a connection that the kernel keeps and cannot send yet.
_UNSENT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may send, how long it may take, and how many may be open."""

    connections: int = 4096
    """Connections that may be open."""
    head_bytes: int = 64 * 1024
    """The request line with all headers, and bytes in a row that bring no byte of a body."""
    headers: int = 128
    """Headers of one request."""
    url_bytes: int = 8 * 1024
    """The URL of one request."""
    head_s: float = 10.0
    """The time until the headers are complete, from the first byte or from the connection."""
    idle_s: int = 75
    """The time that a connection may rest between two requests."""
    stall_s: float = 75.0
    """The time that a full write buffer may stand still."""
    pipelined: int = 16
    """Requests of one connection that wait for the answer to an earlier request."""
    dropped_bytes: int = 32 * 1024 * 1024
    """Bytes of a body that come after the answer, and are dropped."""
    linger_s: float = 2.0
    """The time that a refused client has to read the refusal."""
    message_s: float = 30.0
    """The time from the first to the last fragment of a WebSocket message."""
    fragments: int = 1024
    """Fragments of one WebSocket message."""
    control_frames: int = 256
    """Pings and pongs of a client within `control_s`."""
    control_s: float = 10.0
    """The time in which `control_frames` are counted."""
    unfinished_bytes: int = 256 * 1024 * 1024
    """Bytes of all WebSocket messages that are half received; the first 64 KiB of each are free."""
    quiet_s: float = 60.0
    """The time without a message after which a WebSocket may be closed for a new connection."""


def most_connections(max_requests: int) -> int:
    """How many HTTP connections may be open beside `max_requests` requests.

    At most half of the files that the process may open. The soft limit of open files is first
    raised as far as the hard limit allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(_LEAST_CONNECTIONS, min(_CONNECTIONS_PER_REQUEST * max_requests, files // 2))


def watch_peers(listening: socket.socket, stall_s: float) -> None:
    """Have the kernel end connections of this socket whose peer is gone, after about a minute.

    Accepted connections inherit the options. The kernel also ends a connection whose peer
    acknowledges nothing, or has no room for data, for `stall_s`. It keeps little that a peer has no
    room for, so that a stream notices soon that nobody reads it.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": 30,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": int(stall_s * 1000),
        "TCP_NOTSENT_LOWAT": _UNSENT_BYTES,
    }
    for name, value in options.items():
        # macOS has none of this name for two of them.
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
