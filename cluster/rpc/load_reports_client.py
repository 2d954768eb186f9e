"""Load reports in a router: the last report of each replica, and which replicas are silent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from cluster.api.event_streams import end
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.errors import Unavailable
from protos import report_pb2
from protos.wire.client import Connector
from protos.wire.streams import FrameStream

log = logging.getLogger(__name__)

# Silence is counted in ticks of this router's loop, so that its own stalls are not taken for it.
TICK_S = 0.1
_STALE_TICKS = 10
_SILENT_TICKS = 12
_REOPEN_S = 0.25
# A bound: a report has some numbers.
_MOST_BYTES = 4096


@dataclass(slots=True)
class _Followed:
    """A replica and its last report, which came at `reported_s` (monotonic).

    `merged` is the record `base` with that report.
    """

    record: ReplicaRecord
    task: asyncio.Task[None]
    report: report_pb2.Report | None = None
    ticks: int = 0
    reported_s: float = 0.0
    base: ReplicaRecord | None = None
    merged: ReplicaRecord | None = None


class LoadReports:
    """Follows replicas. `heard` gets each report, `stale` each replica that stopped reporting.

    `ticked` gets every `TICK_S` each replica that has reported, and whether it just reported. All
    are called in the event loop.
    """

    def __init__(
        self,
        connector: Connector,
        heard: Callable[[str, ReplicaLoad], None],
        stale: Callable[[str], None],
        ticked: Callable[[Iterable[tuple[ReplicaRecord, bool]]], None] = lambda replicas: None,
    ) -> None:
        self._connector = connector
        self._heard = heard
        self._on_stale = stale
        self._ticked = ticked
        self._followed: dict[str, _Followed] = {}
        self._ticker: asyncio.Task[None] | None = None

    def follow(self, records: Iterable[ReplicaRecord]) -> None:
        """Follow these replicas and no others."""
        records_by_id = {record.id: record for record in records if record.role != "router"}
        for name, followed in list(self._followed.items()):
            record = records_by_id.get(name)
            if record is None or record.generation != followed.record.generation:
                followed.task.cancel()
                del self._followed[name]
        for name, record in records_by_id.items():
            if name not in self._followed:
                task = asyncio.create_task(self._follow(record), name=f"reports of {name}")
                self._followed[name] = _Followed(record, task)
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick(), name="silence of replicas")

    def with_report(self, record: ReplicaRecord) -> ReplicaRecord:
        """The record with the replica's last report, unless that is old."""
        followed = self._followed.get(record.id)
        if followed is None or followed.report is None or followed.ticks >= _STALE_TICKS:
            return record
        # Kept, because each request reads it several times, and it changes a few times a second.
        if followed.merged is None or followed.base is not record:
            followed.base = record
            followed.merged = replace(record, load=_merged(record.load, followed.report))
        return followed.merged

    def stale(self) -> set[str]:
        """The replicas that have not reported for a second."""
        return {
            name
            for name, followed in self._followed.items()
            if followed.report is None or followed.ticks >= _STALE_TICKS
        }

    def silent(self, replica: str) -> bool:
        """Whether a replica no longer reports: it is frozen, cut off or gone."""
        followed = self._followed.get(replica)
        return (
            followed is not None and followed.report is not None and followed.ticks >= _SILENT_TICKS
        )

    def reported_since(self, replica: str, since_s: float) -> bool:
        """Whether a replica has reported, a tick or more after that time (monotonic)."""
        followed = self._followed.get(replica)
        # A dead replica's last report may wait in this process.
        return followed is not None and followed.reported_s >= since_s + TICK_S

    async def close(self) -> None:
        """Follow no replica any more."""
        tasks = [followed.task for followed in self._followed.values()]
        if self._ticker is not None:
            tasks.append(self._ticker)
        await end(tasks)
        self._followed.clear()
        self._ticker = None

    async def _follow(self, record: ReplicaRecord) -> None:
        while True:
            stream = FrameStream(_MOST_BYTES)
            try:
                await self._connector.connect(record.address, "reports", stream.wire)
                while True:
                    frame = report_pb2.ReportFrame.FromString(await stream.read())
                    self._take(record, frame.report)
            except (Unavailable, DecodeError) as failure:
                log.debug("no reports", extra={"replica": record.id, "reason": str(failure)})
            except Exception:
                log.exception("the reports of %s could not be read", record.id)
            finally:
                stream.close()
            await asyncio.sleep(_REOPEN_S)

    def _take(self, record: ReplicaRecord, report: report_pb2.Report) -> None:
        followed = self._followed[record.id]
        if followed.ticks >= _SILENT_TICKS:
            log.warning("replica reports again", extra={"replica": record.id})
        followed.report, followed.ticks, followed.merged = report, 0, None
        followed.reported_s = time.monotonic()
        self._heard(record.id, _merged(record.load, report))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for name, followed in self._followed.items():
                followed.ticks += 1
                if followed.report is None:
                    continue
                if followed.ticks == _STALE_TICKS:
                    self._on_stale(name)
                elif followed.ticks == _SILENT_TICKS:
                    log.warning("replica is silent", extra={"replica": name})
            known = [one for one in self._followed.values() if one.report is not None]
            self._ticked([(one.record, one.ticks <= 1) for one in known])


def _merged(load: ReplicaLoad, report: report_pb2.Report) -> ReplicaLoad:
    return replace(
        load,
        waiting=report.waiting,
        running=report.running,
        prompt_tokens_due=report.prompt_tokens_due,
        blocks_free=report.blocks_free,
        blocks_promised=report.blocks_promised,
        streams=report.streams,
        step_s=report.step_s if report.HasField("step_s") else None,
        batch_tokens_due=report.batch_tokens_due,
        batch_blocks=report.batch_blocks,
        batch_streams=report.batch_streams,
        batch_limit=report.batch_limit,
        stalled=report.stalled,
        pass_s=report.pass_s if report.HasField("pass_s") else None,
        pass_token_s=report.pass_token_s,
        shared_tokens=report.shared_tokens,
        chunk_tokens=report.chunk_tokens,
    )
