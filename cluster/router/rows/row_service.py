"""Lists the rows of the request log for operators: `tandem requests` and `tandem explain`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from cluster.console.time_series import WINDOW_S
from cluster.console.ttft_rise import rises
from cluster.console.ttft_sample import TtftSample
from cluster.gateway.grpc_methods import Context, Received, answering
from cluster.telemetry.requests.behind import blockers
from cluster.telemetry.requests.row import RequestRow, brief, whole
from cluster.telemetry.requests.store import RequestStore, RowFilter
from protos import router_pb2

# Bound: rows with all their choices in one answer, where a client used an id more than once.
_MOST_WHOLE = 4


class RowService:
    """Answers from the memory of one router. `operator` raises where a call has no operator's key.

    A tenant's key opens nothing here, because rows name every tenant.
    """

    def __init__(self, store: RequestStore, operator: Callable[[Context], str]) -> None:
        self._store = store
        self._operator = operator

    async def ListRequests(  # noqa: N802
        self, request: Received[router_pb2.ListRequestsRequest], context: Context
    ) -> router_pb2.ListRequestsResponse:
        """The rows that the request chooses; InvalidRequest for a wrong field."""
        async with answering(context):
            self._operator(context)
            asked = await request.read()
            wanted = _filter_of(asked)
            rows, running = list(self._store), self._store.running() if wanted.request_id else []
            # A loop over thousands of rows would delay tokens.
            listed = await asyncio.to_thread(_listed, wanted, rows, running)
            rose = await asyncio.to_thread(_rises, rows) if asked.rises else ()
            return router_pb2.ListRequestsResponse(rows=listed, held=len(rows), rises=rose)


def _filter_of(wire: router_pb2.ListRequestsRequest) -> RowFilter:
    return RowFilter(
        wire.request_id,
        wire.endpoint,
        wire.tenant,
        wire.failed,
        wire.since_s,
        wire.slowest,
        wire.limit,
    )


def _listed(
    wanted: RowFilter, rows: Sequence[RequestRow], running: Sequence[RequestRow]
) -> list[str]:
    found = wanted.of(rows)
    if not wanted.request_id:
        return [json.dumps(brief(row)) for row in found]
    return [_explained(row, rows, running) for row in found[:_MOST_WHOLE]]


def _rises(rows: Sequence[RequestRow]) -> list[str]:
    since = time.time() - WINDOW_S
    samples = [TtftSample.of_row(row) for row in rows if row.received_at >= since]
    return [json.dumps(one.to_json()) for one in rises([one for one in samples if one])]


def _explained(row: RequestRow, rows: Sequence[RequestRow], running: Sequence[RequestRow]) -> str:
    behind = [asdict(one) for one in blockers(row, rows, running)]
    return json.dumps(whole(row) | {"behind": behind})
