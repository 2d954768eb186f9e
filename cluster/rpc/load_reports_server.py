"""Load reports in a replica: it tells routers its load as soon as that changes.

At the end of a pass a router's forecast changes most, so a report follows it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.replica_record import ReplicaLoad
from engine.loop_wakeup import LoopWakeup, PassEnds
from protos import report_pb2
from protos.wire.streams import FrameStream

# Promise: the interval of reports while the load changes, and while it does not.
CHANGED_S = 0.05
UNCHANGED_S = 0.25
# Bound: the least interval of reports, so that a router has few. It is two short passes of a GPU.
LEAST_S = 0.02


class LoadReporter:
    """Reports from the event loop. A silent replica is one whose event loop hangs.

    The load of a replica without requests changes only after `wake` is set, so the reporter waits
    for that. Without a `wake` it polls at the usual interval. `passes` tells of the ends of passes.
    """

    def __init__(
        self,
        state: Callable[[], ReplicaLoad],
        wake: LoopWakeup | None = None,
        passes: PassEnds | None = None,
    ) -> None:
        self._state = state
        self._wake = wake
        self._passes = passes or PassEnds()

    async def serve(self, stream: FrameStream) -> None:
        """Write reports until the router goes away; it must say nothing."""
        reporting = asyncio.create_task(self._report(stream))
        try:
            await stream.read()
        finally:
            reporting.cancel()
            await asyncio.wait({reporting})

    async def _report(self, stream: FrameStream) -> None:
        loop = asyncio.get_running_loop()
        sent: report_pb2.Report | None = None
        sent_s = 0.0
        while True:
            ended = self._passes.count
            report = report_to_proto(self._state())
            now = loop.time()
            if report != sent or now - sent_s >= UNCHANGED_S:
                await stream.write(report_pb2.ReportFrame(report=report).SerializeToString())
                sent, sent_s = report, now
            wake = self._wake if _is_idle(report) else None
            # A request may have come while the report was written.
            if wake is not None and report_to_proto(self._state()) == report:
                await wake.stirred(UNCHANGED_S)
            else:
                await asyncio.sleep(LEAST_S)
                await self._passes.beyond(ended, CHANGED_S - LEAST_S)


def report_to_proto(load: ReplicaLoad) -> report_pb2.Report:
    """The report of a load for routers."""
    return report_pb2.Report(
        waiting=load.waiting,
        running=load.running,
        prompt_tokens_due=load.prompt_tokens_due,
        blocks_free=load.blocks_free,
        blocks_promised=load.blocks_promised,
        streams=load.streams,
        step_s=load.step_s,
        batch_tokens_due=load.batch_tokens_due,
        batch_blocks=load.batch_blocks,
        batch_streams=load.batch_streams,
        batch_limit=load.batch_limit,
        stalled=load.stalled,
        pass_s=load.pass_s,
        pass_token_s=load.pass_token_s,
        shared_tokens=load.shared_tokens,
        chunk_tokens=load.chunk_tokens,
    )


def _is_idle(report: report_pb2.Report) -> bool:
    """Whether the replica has no request in any state."""
    return not (report.waiting or report.running or report.streams or report.blocks_promised)
