"""Taking over: a router goes on with the streams of a router that is dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from cluster.journal.bounds import JournalBounds, StreamSize
from cluster.journal.rebuild import RebuiltStream, rebuilt
from cluster.journal.store import JournalStore, StoredStream
from cluster.journal.writer import JournalWriter
from cluster.router.phases import EmitOf
from cluster.router.resumable.progress import emit_to
from cluster.router.running_requests import RunningRequest
from cluster.telemetry import router_metrics as metrics
from engine.errors import Cancelled, Unavailable
from protos.journal_pb2 import JournaledRequest

_POLL_S = 0.1
# Opens the stream of a request that is taken over, and says where its events go.
OpenStream = Callable[[RunningRequest], EmitOf]


class StreamRunner(Protocol):
    """The part of the router that goes on with requests of other routers."""

    def check_room(self, choices: int) -> None:
        """Raise Overloaded where so many more choices cannot run here."""
        ...

    def go_on(self, built: RebuiltStream, open_stream: OpenStream) -> RunningRequest:
        """Run the rest of a request; its events go to the stream."""
        ...

    def detach(self, running: RunningRequest, outlive: Callable[[], Awaitable[None]]) -> None:
        """Let the request go on until `outlive` returns, or until it ends."""
        ...


class StreamTakeover:
    """Makes a router the owner of streams whose owner is dead.

    `owned` has the streams that the router owns. `model_identity` names its weights.
    """

    def __init__(
        self,
        store: JournalStore,
        writer: JournalWriter,
        bounds: JournalBounds,
        owned: dict[str, RunningRequest | None],
        model_identity: str,
        runner: StreamRunner,
    ) -> None:
        self._store = store
        self._writer = writer
        self._bounds = bounds
        self._owned = owned
        self._identity = model_identity
        self._runner = runner

    async def claim(self, stored: StoredStream) -> RunningRequest | None:
        """Become the owner of a stream and go on with it; None where another router was faster.

        Raises Unavailable and Overloaded where it cannot go on here.
        """
        stream_id, record = stored.stream_id, stored.record
        if stream_id in self._owned:
            await asyncio.sleep(_POLL_S)
            return None
        if record.model_identity != self._identity:
            raise Unavailable("only a router of the same weights can go on with this stream")
        self._runner.check_room(record.request.n or 1)
        self._bounds.reserve(stream_id, size_of(record), time.monotonic())
        self._owned[stream_id] = None
        running = None
        try:
            running = await self._take_over(stored)
        finally:
            if running is None:
                del self._owned[stream_id]
                self._bounds.drop(stream_id)
        if running is None:
            await asyncio.sleep(_POLL_S)
        return running

    async def _take_over(self, stored: StoredStream) -> RunningRequest | None:
        stream_id, record = stored.stream_id, stored.record
        async with self._writer.taking(stream_id) as found:
            if found.outcome != "taken":
                return None
            entries = await self._store.read_all(stream_id)

            def open_stream(running: RunningRequest) -> EmitOf:
                running.stream = self._writer.adopt(
                    stream_id, found.fence, record, entries, running.events.put, running.lost
                )
                self._owned[stream_id] = running
                return emit_to(running.stream)

            running = self._runner.go_on(rebuilt(record, entries), open_stream)
        metrics.STREAMS_TAKEN_OVER.inc()
        if found.cancelled:
            running.cancel(Cancelled("the request was cancelled"))
        return running


def size_of(record: JournaledRequest) -> StreamSize:
    """What decides how many bytes the stream of a request may take."""
    sampling = record.request.sampling
    logprobs = sampling.logprobs if sampling.HasField("logprobs") else None
    choices = record.request.n or 1
    return StreamSize(record.ByteSize(), sampling.max_tokens or 1, choices, logprobs)
