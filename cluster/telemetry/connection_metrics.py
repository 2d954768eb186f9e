"""The metrics of connections, in routers and replicas."""

from __future__ import annotations

from collections.abc import Callable

from engine.telemetry import Counter

REFUSED_CONNECTIONS = Counter(
    "tandem_refused_connections_total",
    "Refused connections by reason, at the listener `http` or `internal` (between members).",
    ("listener", "reason"),
)


def count_refused(listener: str) -> Callable[[str], None]:
    """A function that counts a refused connection of that listener, called with the reason."""
    return lambda reason: REFUSED_CONNECTIONS.inc(listener=listener, reason=reason)
