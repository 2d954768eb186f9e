"""How a request arrived at a front end."""

from __future__ import annotations

from typing import NamedTuple

from cluster.api.tracing import Trace


class RequestArrival(NamedTuple):
    """The id that a request gets if it has none, its tenant, its time (monotonic), its trace."""

    request_id: str
    tenant: str
    arrived_s: float
    trace: Trace
