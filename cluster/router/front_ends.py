"""The front ends of a router process: a gRPC server and an HTTP server, on the configured ports.

Beside them it has a port for other routers.
"""

from __future__ import annotations

import asyncio
from typing import Self

from cluster.console.app import Console
from cluster.gateway import grpc_server, http_app, uvicorn_server
from cluster.gateway.arrival_probes import SocketArrivals
from cluster.gateway.browser_access import BrowserRules
from cluster.gateway.connections.limits import ConnectionLimits, most_connections
from cluster.gateway.grpc_server import GrpcServer
from cluster.gateway.uvicorn_server import HttpServer, HttpTls
from cluster.router.admin_service import SERVICE
from cluster.router.console.access import OperatorAccess
from cluster.router.peers.peer_port import PeerPort
from cluster.router.router import Router
from cluster.sockets import LOOPBACK, reachable
from cluster.telemetry.backends import CONTENT_TYPE, PrometheusBackend
from protos.wire.tls import front_end_tls

# The time in which the front ends write their last answers.
_LAST_ANSWERS_S = 1.0


class FrontEnds:
    """The servers while they listen; other hosts reach them at `*_address`."""

    def __init__(
        self,
        grpc: GrpcServer,
        http: HttpServer,
        arrivals: SocketArrivals,
        router: Router,
        console: Console,
        peers: PeerPort,
        grpc_address: str,
        http_address: str,
    ) -> None:
        self.grpc_address = grpc_address
        self.http_address = http_address
        self.peer_address = peers.address
        self._peers = peers
        self._grpc = grpc
        self._http = http
        self._arrivals = arrivals
        self._router = router
        self._console = console

    @classmethod
    async def open(
        cls,
        access: OperatorAccess,
        metrics: PrometheusBackend,
        node: str | None,
    ) -> Self:
        """Listen on both ports; raises ConfigError. `node` is this host's address for others.

        With a certificate both front ends speak TLS alone.
        """
        settings, router, keys = access.own.config, access.own.router, access.keys.clients
        config, certificate = settings.router, settings.tls.front_ends
        admin, console = access.admin(), access.console()
        tls = None if certificate is None else front_end_tls(certificate.identity)
        grpc = await grpc_server.start(
            router,
            config.host,
            config.grpc_port,
            max_message_bytes=config.max_message_bytes,
            reuse_port=True,
            keys=keys,
            tls=tls,
            also=[(SERVICE, lambda server: server.add_generic_rpc_handlers((admin.handlers(),)))],
        )
        arrivals = await SocketArrivals.start()
        app = http_app.create_app(
            router,
            metrics=lambda: (metrics.text(), CONTENT_TYPE),
            max_body_bytes=config.max_message_bytes,
            keys=keys,
            arrived=arrivals.probe.arrived,
            rules=BrowserRules.of(config.hosts, config.origins, config.host),
            more_routes=console.routes(),
        )
        http = await uvicorn_server.start(
            app,
            config.host,
            config.http_port,
            reuse_port=True,
            max_message_bytes=config.max_message_bytes,
            drain=app.state.drain,
            tls=None if tls is None else HttpTls(lambda: tls.get().context),
            refusals=app.state.refusals,
            limits=ConnectionLimits(connections=most_connections(config.max_requests)),
        )
        addresses = (reachable(config.host, server.port, node) for server in (grpc, http))
        peers = await access.peer_port(node or LOOPBACK)
        return cls(grpc, http, arrivals, router, console, peers, *addresses)

    async def close(self, grace_s: float) -> None:
        """Take no new requests, and let running requests end within `grace_s`.

        A plain request that takes longer ends with an error. A resumable stream is cut off, so that
        its client comes back to another router.
        """
        await self._arrivals.stop()
        await self._console.close()
        if grace_s < _LAST_ANSWERS_S and self._router.end_plain():
            grace_s = _LAST_ANSWERS_S
        ending = asyncio.get_running_loop().call_later(
            grace_s - _LAST_ANSWERS_S, self._router.end_plain
        )
        http_grace_s = max(grace_s, _LAST_ANSWERS_S)
        try:
            await asyncio.gather(self._grpc.stop(grace_s), self._http.stop(http_grace_s))
        finally:
            ending.cancel()
            await self._peers.close()
