"""Runs the rest of requests that other routers began."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from cluster.journal.rebuild import RebuiltStream
from cluster.router.accounting import RequestAccounting
from cluster.router.phases import RequestPhases
from cluster.router.request_tasks import RequestTasks
from cluster.router.resumable.progress import arrived_s, so_far
from cluster.router.resumable.takeover import OpenStream
from cluster.router.running_requests import RunningRequest, RunningRequests

log = logging.getLogger(__name__)


class RestRunner:
    """Goes on with requests of other routers. Implements `StreamRunner`.

    `counts_for` names the tenant that a request of a tenant counts for. `check_open` raises once
    this router takes nothing more.
    """

    def __init__(
        self,
        running: RunningRequests,
        tasks: RequestTasks,
        accounting: RequestAccounting,
        phases: RequestPhases,
        counts_for: Callable[[str], str],
        check_open: Callable[[], None],
    ) -> None:
        self._running = running
        self._tasks = tasks
        self._accounting = accounting
        self._phases = phases
        self._counts_for = counts_for
        self._check_open = check_open

    def check_room(self, choices: int) -> None:
        """Raise where so many more choices cannot run here."""
        self._check_open()
        self._running.check_room(choices)

    def go_on(self, built: RebuiltStream, open_stream: OpenStream) -> RunningRequest:
        """Run the rest of a request."""
        request = replace(built.request, arrived_s=arrived_s(built))
        name = built.started.request_id
        counts_for = self._counts_for(request.tenant)
        if self._running.find(counts_for, name) is not None:
            name = built.started.stream_id  # its client used the request id again
        account = self._accounting.open(request, name, counts_for)
        choices = so_far(built)
        running = self._running.add(account, request.n, batch=account.labels["lane"] == "batch")
        emit_of = open_stream(running)
        self._tasks.start(running, partial(self._phases.go_on, request, account, emit_of, choices))
        log.info("request taken over", extra={"request_id": name, **account.labels})
        return running

    def detach(self, running: RunningRequest, outlive: Callable[[], Awaitable[None]]) -> None:
        """Let the request go on until `outlive` returns, or until it ends."""
        self._tasks.detach(running, outlive)
