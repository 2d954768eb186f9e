"""The tasks behind requests: each makes the events of one request, with or without a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cluster.api import Summary
from cluster.api.event_streams import end
from cluster.router.accounting import RequestAccounting
from cluster.router.running_requests import RunningRequest, RunningRequests
from engine.errors import Cancelled, Internal, TandemError

log = logging.getLogger(__name__)


class RequestTasks:
    """Starts, watches and ends the tasks of a router's requests."""

    def __init__(self, accounting: RequestAccounting, running: RunningRequests) -> None:
        self._accounting = accounting
        self._running = running
        # Each waits for a request that no connection of this router waits for.
        self._detached: set[asyncio.Task[None]] = set()

    def start(self, running: RunningRequest, phases: Callable[[], Awaitable[Summary]]) -> None:
        """Serve the request in a task of its own."""
        running.task = asyncio.create_task(self._drive(running, phases))
        # A task that is cancelled before its first step runs nothing of `_drive`.
        running.task.add_done_callback(lambda _: self._end_cancelled(running))

    async def release(self, running: RunningRequest) -> None:
        """End a request: stop its task, and free its id. Idempotent."""
        running.events.close()
        self._running.remove(running)
        try:
            if running.task is not None:
                running.task.cancel()
                await asyncio.wait([running.task])
        finally:
            running.ended()

    def detach(self, running: RunningRequest, outlive: Callable[[], Awaitable[None]]) -> None:
        """Let a request go on without a client, until its end or until `outlive` returns."""

        async def wait() -> None:
            try:
                await outlive()
            except Exception as error:
                log.exception("request failed", extra={"request_id": running.account.request_id})
                running.put(Internal(f"internal error: {type(error).__name__}"))
            finally:
                await self.release(running)

        running.events.close()
        task = asyncio.create_task(wait())
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)

    async def close(self) -> None:
        """End the requests without a client. Another router may go on with them."""
        for running in self._running:
            if running.outlives:
                await self.release(running)
        while self._detached:
            await end(list(self._detached))

    async def _drive(
        self, running: RunningRequest, phases: Callable[[], Awaitable[Summary]]
    ) -> None:
        """Serve the request; the last event is its summary or its error."""
        try:
            self._end(running, "ok", await phases())
        except TandemError as error:
            self._end(running, type(error).__name__, error)
        except asyncio.CancelledError:
            self._end_cancelled(running)
            raise
        except Exception as error:
            log.exception("request failed", extra={"request_id": running.account.request_id})
            self._end(running, "Internal", Internal(f"internal error: {type(error).__name__}"))

    def _end_cancelled(self, running: RunningRequest) -> None:
        last = running.ended_by or Cancelled("the request was cancelled")
        outcome = "cancelled" if isinstance(last, Cancelled) else type(last).__name__
        self._end(running, outcome, last)

    def _end(self, running: RunningRequest, outcome: str, last: Summary | TandemError) -> None:
        """Count the end, and tell the client. The first end counts, and always reaches it."""
        if running.counted:
            return
        running.counted = True
        try:
            self._accounting.ended(running.account, outcome, last)
        except Exception:
            log.exception(
                "an end was not counted", extra={"request_id": running.account.request_id}
            )
        running.put(last)
