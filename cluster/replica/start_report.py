"""How far a replica's start is: it tells the directory often, and the log now and then.

The engine loads on a thread of its own, so the event loop is free to tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

from cluster.api.event_streams import end
from cluster.discovery.redis_directory import Directory
from cluster.discovery.starting_replicas import READY, StartingReplica
from cluster.telemetry.logging_setup import LineFormatter
from cluster.work_progress import LineLimit, WorkRate
from engine.errors import Unavailable
from engine.startup_timer import StageProgress, StartupTimer

log = logging.getLogger(__name__)

# Bound: the time between two statements.
EVERY_S = 0.5
# Numerics: how long the rate of reading looks back. A disk is slower than the page cache.
_READING_S = 30.0
_CONTAINER_LOG = "TANDEM_CONTAINER_LOG"


class StartReport:
    """Tells how far a start is, while it is a context. An error that leaves it ends the telling.

    `timer` has the stages. Nothing waits for a directory or a log that does not take the telling.
    """

    def __init__(
        self, timer: StartupTimer, directory: Directory, replica_id: str, role: str
    ) -> None:
        self._timer = timer
        self._directory = directory
        self._id, self._role = replica_id, role
        self._stage: StageProgress | None = None
        self._work_rate = WorkRate()
        self._limit = LineLimit()
        self._weights_told = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # Now, because imports may keep this event loop busy for long.
        await self._tell()
        self._task = asyncio.create_task(self._run(), name=f"start of {self._id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            await end([self._task])
        said = self._statement(None, time.monotonic())
        self._log_weights(said)
        with contextlib.suppress(Unavailable):
            if error is None:
                await self._directory.starting.tell(said)
            else:
                await self._directory.starting.withdraw(self._id)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self._tell()

    async def _tell(self) -> None:
        now, stage = time.monotonic(), self._timer.stage
        if stage is None:
            return
        said = self._statement(stage, now)
        self._log_weights(said)
        if self._limit.due(said.stage, now):
            self._write(said.progress)
        with contextlib.suppress(Unavailable):  # the directory is asked again soon
            await self._directory.starting.tell(said)

    def _statement(self, stage: StageProgress | None, now: float) -> StartingReplica:
        said = StartingReplica(
            self._id,
            self._role,
            READY,
            weights_bytes=self._timer.counted.get("weights", 0),
            weights_s=self._timer.took.get("weights", 0.0),
        )
        if stage is None:
            return said
        if stage is not self._stage:
            self._stage = stage
            self._work_rate = WorkRate(_READING_S) if stage.name == "weights" else WorkRate()
        done, total = stage.done, stage.total
        if total is not None:
            self._work_rate.look(done, now)
        return replace(
            said,
            stage=stage.name,
            stage_s=now - stage.began_s,
            done=done,
            total=total or 0,
            unit=stage.unit,
            rate=self._work_rate.rate(now),
            left_s=None if total is None else self._work_rate.left_s(total, now),
        )

    def _log_weights(self, said: StartingReplica) -> None:
        if said.weights and not self._weights_told:
            self._weights_told = True
            self._write(said.weights)

    def _write(self, line: str) -> None:
        """Write a line to the log, and to the file that TANDEM_CONTAINER_LOG names, if any."""
        log.info("starting: %s", line)
        if path := os.environ.get(_CONTAINER_LOG):
            _append(path, self._id, line)


def _append(path: str, replica_id: str, line: str) -> None:
    """Append a line as the log has it, at once or not at all."""
    record = log.makeRecord(log.name, logging.INFO, "", 0, "starting: %s", (line,), None)
    text = LineFormatter(replica_id).format(record)
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        try:
            os.write(number, f"{text}\n".encode())
        finally:
            os.close(number)
