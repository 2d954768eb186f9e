"""Lists the rows of the request log for operators: `tandem requests` and `tandem explain`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from cluster.console.rise.lengths import answer_of
from cluster.console.rise.ttft_rise import rises
from cluster.console.ttft_sample import TtftSample
from cluster.gateway.grpc_methods import Context, Received, answering
from cluster.router.rows.gathered_rows import GatheredRows, RowList
from cluster.router.rows.tenant_figures import busiest
from cluster.telemetry.requests.row_clock import row_clock
from protos.peer_pb2 import RowsQuestion
from protos.router_pb2 import ListRequestsRequest, ListRequestsResponse


class RowService:
    """Answers from the memories of all routers. `operator` raises for a call without its key.

    A tenant's key opens nothing here, because rows name every tenant.
    """

    def __init__(self, rows: GatheredRows, operator: Callable[[Context], str]) -> None:
        self._rows = rows
        self._operator = operator

    async def ListRequests(  # noqa: N802
        self, request: Received[ListRequestsRequest], context: Context
    ) -> ListRequestsResponse:
        """The rows that the request chooses; InvalidRequest for a wrong field."""
        async with answering(context):
            self._operator(context)
            wanted = await request.read()
            found = await self._rows.gather(RowsQuestion(wanted=wanted))
            # A loop over thousands of rows would delay tokens.
            return await asyncio.to_thread(_response, found)


def _response(found: RowList) -> ListRequestsResponse:
    return ListRequestsResponse(
        rows=map(json.dumps, found.rows),
        held=found.held,
        rises=_rises(found.first_tokens),
        silent=found.silent,
        figures=found.figures,
        tenants=busiest(found.tenants, found.shares),
        observed_s=found.observed_s,
    )


def _rises(samples: Sequence[TtftSample]) -> list[str]:
    answers = [answer for one in samples if (answer := answer_of(one)) is not None]
    found = rises(samples, row_clock(), answers)
    return [json.dumps(one.to_json()) for one in found]
