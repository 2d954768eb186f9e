"""A replica without a model, in a process of its own, for measuring what lies in front of them.

The server, servicer and jobs are the real ones; only computing and moving KV is made up. The
prompt says how: its first two ids are the milliseconds between two steps and the tokens that each
request gets in a step. A token's text is its index, so that a client can tell what is missing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple

import grpc
import grpc.aio

from bench.core.event_loop import run
from bench.router.direct_front_ends import DirectFrontEnds
from cluster.config.deployment import DirectoryConfig
from cluster.discovery.heartbeat import LeaseHeartbeat
from cluster.discovery.redis_directory import Directory
from cluster.replica.gc_tuning import settle
from cluster.replica_record import Pool, ReplicaLoad, ReplicaRecord
from cluster.rpc.load_reports_server import ReportServicer
from cluster.rpc.server import CallServer, Serve, new_server
from decode_pool.job import DecodeJob
from decode_pool.servicer import DecodeServicer
from engine.scheduling.prompt_queue import QueuePosition
from engine.text.completion import Piece
from engine.types.sequence import SampledToken, Sequence
from kv_transfer.links.incoming_transfer import OfferedKv, ReceivedKv
from prefill_pool.loop import PrefillJob, PrefillResult
from prefill_pool.servicer import PrefillServicer
from protos import report_pb2_grpc

ECHO = "/tandem.bench.Echo/Once"
_BLOCKS = 100_000_000
_LOAD = ReplicaLoad(
    blocks_total=_BLOCKS, blocks_free=_BLOCKS, block_size=16, context_tokens=1_000_000
)
Close = Callable[[], Awaitable[None]]
_Admit = Callable[[OfferedKv], Awaitable[tuple[list[int], int]]]


class PlaceText:
    """Stands in for `engine.text.completion.ChoiceText`: a token's text is its index in the
    output."""

    def __init__(self, sequence: Sequence) -> None:
        self._most = sequence.sampling.max_tokens or 1
        self._place = 0
        self._sampled = 1

    def ends_with(self, token: int) -> bool:
        """Whether the token sampled now is the last; the first one is prefill's."""
        self._sampled += 1
        return self._sampled >= self._most

    def push(self, token: int) -> Piece:
        """The text of the next token."""
        text = f" {self._place}"
        self._place += 1
        return Piece(text, "length" if self._place >= self._most else None)


class InstantHandOver:
    """Stands in for `HandOver`: the KV is there at once."""

    def complete(self, first_token: int) -> None:
        """Nothing is kept."""

    async def committed(self, lease_s: float) -> int:
        """It was a byte."""
        return 1

    async def close(self, reason: str) -> None:
        """Nothing is read."""


class SteadyPrefill:
    """Stands in for `PrefillLoop` and `KvSender`: first tokens take so long, and no computing."""

    def __init__(self, prefill_s: float) -> None:
        self._prefill_s = prefill_s

    def load(self) -> ReplicaLoad:
        """Nothing to do."""
        return _LOAD

    def queue_positions(self) -> dict[str, QueuePosition]:
        """Nobody waits."""
        return {}

    def submit(self, sequence: Sequence) -> PrefillJob:
        """Sample the first token without computing anything."""
        loop = asyncio.get_running_loop()
        first, took_s = loop.create_future(), self._prefill_s
        known = PrefillResult(SampledToken(0), 0.0, took_s)
        if took_s:
            loop.call_later(took_s, _unless_gone, first, known)
        else:
            first.set_result(known)
        return PrefillJob(sequence, time.monotonic(), first)

    def release(self, job: PrefillJob) -> None:
        """Do nothing: the job has no blocks."""

    async def vacated(self, job: PrefillJob) -> None:
        """Do nothing: the job has no blocks."""

    def begin(self, kv: Any) -> InstantHandOver:
        """Hand it over."""
        return InstantHandOver()

    async def withdraw(self, transfer: str, receiver: str, reason: str) -> None:
        """Nobody waits."""


def _unless_gone(first: asyncio.Future[PrefillResult], known: PrefillResult) -> None:
    if not first.done():
        first.set_result(known)


class SteadyDecode:
    """Stands in for `DecodeLoop` and `KvReceiver`: steps every few milliseconds, as asked."""

    def __init__(self) -> None:
        self._paces: dict[tuple[int, int], dict[str, DecodeJob]] = defaultdict(dict)
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}

    def queue_positions(self) -> dict[str, QueuePosition]:
        """Nobody waits."""
        return {}

    def register(self, job: DecodeJob) -> None:
        """Take it on."""

    async def admit(self, job: DecodeJob) -> None:
        """There is room."""

    def commit(self, job: DecodeJob) -> None:
        """Join the batch of those with the same pace."""
        pace = (job.sequence.tokens[0], job.sequence.tokens[1])
        self._paces[pace][job.sequence.owner] = job
        if pace not in self._tasks:
            self._tasks[pace] = asyncio.create_task(self._run(*pace))

    def release(self, job: DecodeJob) -> None:
        """Leave the batch."""
        for jobs in self._paces.values():
            jobs.pop(job.sequence.owner, None)

    async def vacated(self, job: DecodeJob) -> None:
        """Do nothing: the job has no blocks."""

    async def receive(
        self, peer: Any, transfer: str, admit: _Admit, timeout_s: float
    ) -> ReceivedKv:
        """The KV is there at once."""
        await admit(OfferedKv(1, 1, 0))
        return ReceivedKv(0, 1, 1, 0.0, 0.0)

    async def _run(self, step_ms: int, tokens: int) -> None:
        """Step as long as there are any; a step that is late is not made up for."""
        jobs = self._paces[step_ms, tokens]
        due = time.monotonic()
        while jobs:
            due = max(due + step_ms / 1000, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            for job in list(jobs.values()):
                self._give(job, tokens, jobs)
        del self._tasks[step_ms, tokens]

    def load(self) -> ReplicaLoad:
        """What it is doing."""
        return replace(_LOAD, running=sum(map(len, self._paces.values())))

    def _give(self, job: DecodeJob, tokens: int, jobs: dict[str, DecodeJob]) -> None:
        for _ in range(tokens):
            job.take(SampledToken(1))
            if job.finished:
                del jobs[job.sequence.owner]
                break
        job.read()


async def _echo(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield request


class Fake(NamedTuple):
    """A fake replica: what it is, what answers its calls, and how to end it."""

    record: ReplicaRecord
    answer: Serve
    close: Close


async def serve(role: Pool, directory: Directory, model: str, prefill_s: float = 0.0) -> Fake:
    """Start one and register it. `model` is the model's identity."""
    server = new_server()
    if role == "prefill":
        prefill: Any = SteadyPrefill(prefill_s)
        load = prefill.load
        answer: Serve = PrefillServicer(prefill, prefill, PlaceText, 60.0).serve  # type: ignore[arg-type]
        _, service, method = ECHO.split("/")
        handlers: dict[str, Any] = {method: grpc.unary_stream_rpc_method_handler(_echo)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    else:
        decode: Any = SteadyDecode()
        load = decode.load
        answer = DecodeServicer(decode, decode, PlaceText, 60.0).serve  # type: ignore[arg-type]
    # Or routers would open a stream of reports again and again.
    report_pb2_grpc.add_ReportsServicer_to_server(ReportServicer(load), server)
    calls = CallServer({role: answer})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    where, born = f"127.0.0.1:{port}", time.time_ns()
    record = ReplicaRecord(
        f"{role}-0",
        role,
        where,
        born,
        model_identity=model,
        load=_LOAD,
        calls=await calls.start("127.0.0.1"),
    )
    await directory.register(record)
    heartbeat = LeaseHeartbeat(directory, record, load)
    heartbeat.start()

    async def close() -> None:
        await heartbeat.stop()
        await calls.stop()
        await server.stop(0)

    return Fake(record, answer, close)


async def main(url: str, role: Pool, model: str, prefill_s: float) -> None:
    """Serve one replica until standard input ends; one that prefills has own front ends."""
    directory = Directory.connect(DirectoryConfig(url=url))
    fake = await serve(role, directory, model, prefill_s)
    found: dict[str, str] = {role: fake.record.address}
    front_ends = None
    if role == "prefill":
        front_ends = await DirectFrontEnds.open(fake.answer)
        found |= {"grpc": front_ends.grpc, "http": front_ends.http}
    settle()
    print(json.dumps(found), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    if front_ends is not None:
        await front_ends.stop()
    await fake.close()
    await directory.close()


if __name__ == "__main__":
    asked: Pool = "prefill" if sys.argv[2] == "prefill" else "decode"
    run(main(sys.argv[1], asked, sys.argv[3], float(sys.argv[4])))
