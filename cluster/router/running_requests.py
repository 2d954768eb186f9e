"""The requests that run in a router, within its bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cluster.admission.router_capacity import RouterCapacity
from cluster.api import Event
from cluster.journal.stream import JournaledStream
from cluster.router.accounting import RequestAccount, running_row
from cluster.router.event_buffer import EventBuffer
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.requests.row import RequestRow
from engine.errors import (
    AlreadyRunning,
    Cancelled,
    InvalidRequest,
    Overloaded,
    TandemError,
    Unavailable,
)
from engine.types.lane_quota import most_of


@dataclass(slots=True)
class RunningRequest:
    """A request in this router: its account, its events, and the task that makes them.

    A resumable request has a `stream`, through which its events go. `on_end` is called with it
    once, when nothing runs behind it any more. `delivered`: its client took an event. `ended_by` is
    why the router ended it, for its row. `counted`: its end is in the metrics and in the log.
    """

    account: RequestAccount
    choices: int
    events: EventBuffer = field(default_factory=EventBuffer)
    task: asyncio.Task[None] | None = None
    stream: JournaledStream | None = None
    on_end: Callable[[JournaledStream], None] | None = None
    delivered: bool = False
    ended_by: TandemError | None = None
    counted: bool = False

    def put(self, event: Event | TandemError) -> None:
        """Send an event to the client, and first to the journal where the request has a stream."""
        if self.stream is None:
            self.events.put(event)
        else:
            self.stream.put(event)

    def cancel(self, error: TandemError) -> bool:
        """End the request with this error, in any phase; False where it has ended."""
        if not self.runs:
            return False
        self._end(error)
        return True

    @property
    def runs(self) -> bool:
        """Whether its task has not ended. Its client may read the end later."""
        return self.task is not None and not self.task.done()

    @property
    def outlives(self) -> bool:
        """Whether the request goes on without its client."""
        return self.stream is not None and self.runs

    def ended(self) -> None:
        """Note that the task has ended, or never began. Idempotent."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None and self.stream is not None:
            on_end(self.stream)

    def lost(self) -> None:
        """End the request here, because another router goes on with it."""
        goes_on = "another router goes on with this stream"
        # Here it ends as if cancelled: it has not failed.
        self.ended_by = self.ended_by or Cancelled(goes_on)
        # Also after the task: the journal refused its last events, so its client did not get them.
        self._end(Unavailable(goes_on, retry_after_s=0.0))

    def _end(self, error: TandemError) -> None:
        self.ended_by = self.ended_by or error
        if self.task is not None:
            self.task.cancel()
        self.events.end_with(error)
        if self.stream is not None:
            self.stream.put(error)


class RunningRequests:
    """Holds at most `most` choices. A request id is unique in the tenant that it counts for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[tuple[str, str], RunningRequest] = {}
        self._choices = 0
        self._capacity = RouterCapacity()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningRequest]:
        return iter(list(self._running.values()))

    def rows(self) -> list[RequestRow]:
        """The rows of the requests, as far as they came."""
        return [running_row(running.account) for running in self]

    def find(self, tenant: str, request_id: str) -> RunningRequest | None:
        """The request of that id that counts for the tenant, if it runs."""
        return self._running.get((tenant, request_id))

    def replace_unknown(self, tenant: str, request_id: str) -> None:
        """Let a client begin a request again whose connection broke before it knew the stream."""
        old = self.find(tenant, request_id)
        if old is not None and old.events.closed and old.outlives and not old.delivered:
            old.cancel(Cancelled("its client began it again"))
            self.remove(old)

    def end_plain(self) -> int:
        """End the requests with which no other router can go on; returns their number."""
        plain = [running for running in self if running.stream is None]
        for running in plain:
            running.cancel(Unavailable("the router ended; send the request again"))
        return len(plain)

    def lose(self) -> None:
        """Let go of the resumable requests, for other routers to go on with."""
        for running in [running for running in self if running.stream is not None]:
            running.lost()

    def check_room(self, choices: int, *, batch: bool = False) -> None:
        """Raise Overloaded where so many more choices are more than may run here."""
        most = most_of(self._most, batch=batch)
        if self._choices + choices > most:
            now, beyond = time.monotonic(), max(0, self._choices - most)
            wait_s = self._capacity.wait_s(choices, self._choices, now, beyond)
            raise Overloaded(f"{most} requests run here, the most there may", retry_after_s=wait_s)

    def add(self, account: RequestAccount, choices: int, *, batch: bool = False) -> RunningRequest:
        """Hold a new request; raises InvalidRequest, AlreadyRunning, or Overloaded: no room."""
        name = account.request_id
        if (account.tenant, name) in self._running:
            raise AlreadyRunning(f"request_id {name!r} is running already")
        most = most_of(self._most, batch=batch)
        if choices > most:
            raise InvalidRequest(f"n is {choices}: at most {most} choices run here", field="n")
        self.check_room(choices, batch=batch)
        running = RunningRequest(account, choices)
        self._running[account.tenant, name] = running
        self._choices += choices
        metrics.RUNNING.set(len(self._running))
        return running

    def remove(self, running: RunningRequest) -> None:
        """Free the id and the place of a request that is over. Idempotent."""
        account = running.account
        key = account.tenant, account.request_id
        if self._running.get(key) is running:
            del self._running[key]
            self._choices -= running.choices
            # A request without a first token does not show how long requests stay.
            if account.ttft_s is not None:
                self._capacity.ended(time.monotonic() - account.began_s)
        metrics.RUNNING.set(len(self._running))
