"""Addresses to listen on and to connect to, with one clear line where binding fails."""

from __future__ import annotations

import socket

from engine.errors import ConfigError

LOOPBACK = "127.0.0.1"
_ALL_ADDRESSES = {"0.0.0.0": LOOPBACK, "::": "::1"}


def is_port(value: int) -> bool:
    """Whether a number can be a port; 0 means a free one."""
    return 0 <= value <= 65535


def listening_socket(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A TCP socket that listens; port 0 takes a free one. Raises ConfigError."""
    sock = bound_socket(host, port, reuse_port=reuse_port)
    try:
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise cannot_listen(host, port, error) from None
    return sock


def bound_socket(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A bound TCP socket that does not listen, to reserve a port for another process.

    The system gives the port to no outgoing connection, and to no socket that takes a free port.
    Another process can listen on it with SO_REUSEADDR. Raises ConfigError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise cannot_listen(host, port, error) from None
    sock.setblocking(False)
    return sock


def cannot_listen(host: str, port: int, error: Exception | None = None) -> ConfigError:
    """The error to raise if `host:port` cannot be bound; finds the reason if it is not given."""
    if error is None:
        try:
            listening_socket(host, port).close()
        except ConfigError as found:
            return found
    reason = getattr(error, "strerror", None) or str(error or "the system refused")
    return ConfigError(f"cannot listen on {join(host, port)}: {reason.lower()}")


def join(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str, port: int, node: str | None = None) -> str:
    """The address by which a server that listens on `host` is reached.

    From this machine, where it listens on all addresses; from others with `node`, its own.
    """
    here = _ALL_ADDRESSES.get(host)
    return join(host if here is None else node or here, port)
