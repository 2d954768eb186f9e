"""The metrics of connections, in routers and replicas."""

from __future__ import annotations

from collections.abc import Callable

from engine.telemetry import Counter

REFUSED_CONNECTIONS = Counter(
    "tandem_refused_connections_total",
    "Refused connections by reason, at the door `http` or `internal` (between members).",
    ("door", "reason"),
)


def count_refused(listener: str) -> Callable[[str], None]:
    """What counts a refused connection of that listener by its reason."""
    return lambda reason: REFUSED_CONNECTIONS.inc(door=listener, reason=reason)
