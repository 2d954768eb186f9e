"""How many requests each endpoint had, and how long they took, over many rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.telemetry.requests.row import RequestRow
from protos.router_pb2 import EndpointFigures


def figures_of(rows: Iterable[RequestRow]) -> list[EndpointFigures]:
    """The figures of each endpoint, by name. Times are in seconds, of the slowest choice."""
    found: dict[str, EndpointFigures] = {}
    for row in rows:
        one = found.setdefault(row.endpoint, EndpointFigures(endpoint=row.endpoint))
        one.requests += 1
        one.refused += row.refused_for is not None
        one.failed += row.failed and row.refused_for is None
        choice = row.slowest
        if choice is not None and choice.ttft_s is not None:
            one.ttft_s.append(choice.ttft_s)
        if choice is not None and choice.itl_p95_s is not None:
            one.itl_p95_s.append(choice.itl_p95_s)
    return [found[name] for name in sorted(found)]


def joined(routers: Iterable[Iterable[EndpointFigures]]) -> list[EndpointFigures]:
    """The figures of several routers as one."""
    found: dict[str, EndpointFigures] = {}
    for figures in routers:
        for one in figures:
            whole = found.setdefault(one.endpoint, EndpointFigures(endpoint=one.endpoint))
            whole.requests += one.requests
            whole.refused += one.refused
            whole.failed += one.failed
            whole.ttft_s.extend(one.ttft_s)
            whole.itl_p95_s.extend(one.itl_p95_s)
    return [found[name] for name in sorted(found)]
