"""The ports of `tandem serve`: found or refused before anything starts, and kept until it ends."""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import replace

from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig
from cluster.sockets import bound_socket, reachable
from engine.errors import ConfigError

# Ray's autoscaler and dashboard take these for metrics of their own, held or not.
_RAYS_OWN: Collection[int] = (44217, 44227)


class Ports:
    """Keeps ports for the servers of other processes, which take half a minute to come and, after
    a fault, come again."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def settle(self, config: TandemConfig) -> TandemConfig:
        """The configuration with each port 0 replaced; ConfigError names a port that is taken."""
        router, ray = config.router, config.ray
        try:
            http = self._hold(router.host, router.http_port, "--port")
            rpc = self._hold(router.host, router.grpc_port, "--grpc-port")
            dashboard = self._hold(ray.dashboard_host, ray.dashboard_port, "--dashboard-port")
        except ConfigError:
            self.release()
            raise
        return replace(
            config,
            router=replace(router, http_port=http, grpc_port=rpc),
            ray=replace(ray, dashboard_port=dashboard),
        )

    def release(self) -> None:
        """They are anybody's again."""
        while self._held:
            self._held.pop().close()

    def _hold(self, host: str, port: int, flag: str) -> int:
        try:
            sock = bound_socket(host, port)
        except ConfigError as error:
            raise ConfigError(
                f"{error.message}: give another port with {flag} (0 takes a free one)"
            ) from None
        found = int(sock.getsockname()[1])
        if port == 0 and found in _RAYS_OWN:
            with sock:  # so that another one is found
                return self._hold(host, port, flag)
        self._held.append(sock)
        return found


def stop_command(grpc_address: str) -> str:
    """What ends the server whose router is there; the default address need not be said."""
    router = RouterConfig()
    usual = grpc_address == reachable(router.host, router.grpc_port)
    return "tandem stop" if usual else f"tandem stop --address {grpc_address}"
