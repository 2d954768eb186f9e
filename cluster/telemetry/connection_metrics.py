"""The metrics of connections, in routers and replicas."""

from __future__ import annotations

from engine.telemetry import Counter

REFUSED_CONNECTIONS = Counter(
    "tandem_refused_connections_total",
    "Refused connections by reason, at the door `http` or `internal` (between members).",
    ("door", "reason"),
)
