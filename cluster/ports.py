"""The ports of `tandem serve`: found or refused before anything starts."""

from __future__ import annotations

import socket
from dataclasses import replace

from cluster.config import TandemConfig
from cluster.listen import join, listening_socket
from engine.errors import ConfigError

_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def settle_ports(config: TandemConfig) -> TandemConfig:
    """The configuration with each port 0 replaced; ConfigError names a port that is taken."""
    router, ray = config.router, config.ray
    held: list[socket.socket] = []  # held until all are chosen, so that no two are the same
    try:
        http = _hold(held, router.host, router.http_port, "--port")
        rpc = _hold(held, router.host, router.grpc_port, "--grpc-port")
        dashboard = _hold(held, ray.dashboard_host, ray.dashboard_port, "--dashboard-port")
    finally:
        for sock in held:
            sock.close()
    return replace(
        config,
        router=replace(router, http_port=http, grpc_port=rpc),
        ray=replace(ray, dashboard_port=dashboard),
    )


def reachable(host: str, port: int, node: str | None = None) -> str:
    """The address by which a server that listens on `host` is reached.

    From this machine, where it listens on all addresses; from others with `node`, its own.
    """
    here = _ALL_ADDRESSES.get(host)
    return join(host if here is None else node or here, port)


def _hold(held: list[socket.socket], host: str, port: int, flag: str) -> int:
    try:
        sock = listening_socket(host, port)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}: give another port with {flag} (0 takes a free one)"
        ) from None
    held.append(sock)
    return int(sock.getsockname()[1])
