"""The metrics of connections, in routers and replicas."""

from __future__ import annotations

from engine.telemetry import Counter

REFUSED_CONNECTIONS = Counter(
    "tandem_refused_connections_total",
    "Connections that were refused: at the door `http`, `grpc` or `internal`, by reason.",
    ("door", "reason"),
)
