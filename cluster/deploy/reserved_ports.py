"""The ports of `tandem serve`: checked before anything starts, and reserved until it ends."""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import replace

from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig
from cluster.sockets import bound_socket, reachable
from engine.errors import ConfigError

# Ray's autoscaler and dashboard take these ports for metrics of their own, reserved or not.
_RAYS_OWN: Collection[int] = (44217, 44227)


class Ports:
    """Reserves ports for the servers of other processes.

    These servers take half a minute to start and, after a fault, start again.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def settle(self, config: TandemConfig) -> TandemConfig:
        """The configuration with each port 0 replaced; ConfigError names a port that is taken."""
        router, ray = config.router, config.ray
        try:
            http = self._reserve(router.host, router.http_port, "--port")
            rpc = self._reserve(router.host, router.grpc_port, "--grpc-port")
            dashboard = self._reserve(ray.dashboard_host, ray.dashboard_port, "--dashboard-port")
        except ConfigError:
            self.release()
            raise
        return replace(
            config,
            router=replace(router, http_port=http, grpc_port=rpc),
            ray=replace(ray, dashboard_port=dashboard),
        )

    def release(self) -> None:
        """Give up all ports that were reserved."""
        while self._sockets:
            self._sockets.pop().close()

    def _reserve(self, host: str, port: int, flag: str) -> int:
        try:
            sock = bound_socket(host, port)
        except ConfigError as error:
            raise ConfigError(
                f"{error.message}: give another port with {flag} (0 takes a free one)"
            ) from None
        found = int(sock.getsockname()[1])
        if port == 0 and found in _RAYS_OWN:
            with sock:  # stays bound, so that the next search finds another port
                return self._reserve(host, port, flag)
        self._sockets.append(sock)
        return found


def router_command(command: str, grpc_address: str) -> str:
    """The `tandem` command for that router; it leaves out the default address."""
    router = RouterConfig()
    usual = grpc_address == reachable(router.host, router.grpc_port)
    return f"tandem {command}" if usual else f"tandem {command} --address {grpc_address}"
