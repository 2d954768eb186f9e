"""The proof by which a process belongs to its cluster, and both ends of proved connections."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.config.schema import TandemConfig
from cluster.config.tls import InternalTlsConfig
from cluster.telemetry.connection_metrics import count_refused
from protos.wire.client import Connector
from protos.wire.handshake import Purpose
from protos.wire.secret import ClusterSecret
from protos.wire.server import Accept, WireServer


class Membership:
    """Holds the cluster's secret, and the certificate of a member. `Membership.of` reads both."""

    def __init__(self, secret: ClusterSecret, tls: InternalTlsConfig | None = None) -> None:
        self.secret = secret
        self._name = None if tls is None else tls.name
        self._contexts = None if tls is None else tls.contexts()

    @classmethod
    def of(cls, config: TandemConfig) -> Membership:
        """The membership in the cluster of that configuration; raises ConfigError."""
        return cls(config.security.read_secret(), config.tls.internal)

    def connector(self) -> Connector:
        """The dialling side."""
        contexts = self._contexts
        if contexts is None:
            return Connector(self.secret)
        return Connector(self.secret, lambda: contexts.get().client, self._name)

    def server(self, accepts: Mapping[Purpose, Accept]) -> WireServer:
        """The listening side, which counts the connections that it refuses."""
        contexts = self._contexts
        ssl = None if contexts is None else lambda: contexts.get().server
        return WireServer(self.secret, accepts, count_refused("internal"), ssl)
