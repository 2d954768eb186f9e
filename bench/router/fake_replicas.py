"""A replica without a model, in a process of its own, to measure the router in front of it.

The server, servicer and jobs are the real ones; computing and moving KV is simulated. The first two
ids of the prompt are the milliseconds between two steps, and the tokens of each request in a step.
A token's text is its index, so that a client can detect missing tokens.
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
from bench.router.bare_router import config_for
from bench.router.direct_front_ends import DirectFrontEnds
from cluster.config.schema import TandemConfig
from cluster.discovery.heartbeat import LeaseHeartbeat
from cluster.discovery.redis_directory import Directory
from cluster.replica.gc_tuning import settle
from cluster.replica_record import Pool, ReplicaLoad, ReplicaRecord
from cluster.rpc.load_reports_server import LoadReporter
from cluster.rpc.membership import Membership
from cluster.rpc.server import CallServer, Serve
from cluster.sockets import join, listening_socket
from decode_pool.job import DecodeJob
from decode_pool.servicer import DecodeServicer
from engine.model_description import describe
from engine.scheduling.prompt_queue import QueuePosition
from engine.text.completion import Piece
from engine.types.sequence import SampledToken, Sequence
from kv_transfer.links.incoming_transfer import OfferedKv, ReceivedKv
from prefill_pool.loop import PrefillJob, PrefillResult
from prefill_pool.servicer import PrefillServicer
from protos.wire.streams import StreamServer

ECHO = "/tandem.bench.Echo/Once"
_HOST = "127.0.0.1"
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
        """Whether the next token is the last one; prefill samples the first one."""
        self._sampled += 1
        return self._sampled >= self._most

    def push(self, token: int) -> Piece:
        """The text of the next token."""
        text = f" {self._place}"
        self._place += 1
        return Piece(text, "length" if self._place >= self._most else None)


class InstantHandOver:
    """Stands in for `HandOver`: the KV arrives at once."""

    def complete(self, first_token: int) -> None:
        """Do nothing: there is no KV."""

    async def committed(self, lease_s: float) -> int:
        """Return one byte as the size of the KV."""
        return 1

    async def close(self, reason: str) -> None:
        """Do nothing: no block is read."""


class SteadyPrefill:
    """Stands in for `PrefillLoop` and `KvSender`: a first token takes a fixed time."""

    def __init__(self, prefill_s: float) -> None:
        self._prefill_s = prefill_s

    def load(self) -> ReplicaLoad:
        """An empty load."""
        return _LOAD

    def queue_positions(self) -> dict[str, QueuePosition]:
        """There are no waiting prompts."""
        return {}

    def submit(self, sequence: Sequence) -> PrefillJob:
        """Sample the first token without computing anything."""
        loop = asyncio.get_running_loop()
        first, took_s = loop.create_future(), self._prefill_s
        known = PrefillResult(SampledToken(0), 0.0, took_s, time.monotonic() + took_s)
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
        """Begin a hand-over that is complete at once."""
        return InstantHandOver()

    async def withdraw(self, transfer: str, receiver: str, reason: str) -> None:
        """There are no waiting prompts."""


def _unless_gone(first: asyncio.Future[PrefillResult], known: PrefillResult) -> None:
    if not first.done():
        first.set_result(known)


class SteadyDecode:
    """Stands in for `DecodeLoop` and `KvReceiver`: steps every few milliseconds, as asked."""

    def __init__(self) -> None:
        self._batches: dict[tuple[int, int], dict[str, DecodeJob]] = defaultdict(dict)
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}

    def queue_positions(self) -> dict[str, QueuePosition]:
        """There are no waiting prompts."""
        return {}

    def register(self, job: DecodeJob) -> None:
        """Add a request."""

    async def admit(self, job: DecodeJob) -> None:
        """Admit the job at once; one that failed over has its KV then, and joins its batch."""
        if job.failed_over:
            self.commit(job)

    def commit(self, job: DecodeJob) -> None:
        """Join the batch of jobs with the same step interval and tokens."""
        timing = (job.sequence.tokens[0], job.sequence.tokens[1])
        self._batches[timing][job.sequence.owner] = job
        if timing not in self._tasks:
            self._tasks[timing] = asyncio.create_task(self._run(*timing))

    def release(self, job: DecodeJob) -> None:
        """Leave the batch."""
        for jobs in self._batches.values():
            jobs.pop(job.sequence.owner, None)

    async def vacated(self, job: DecodeJob) -> None:
        """Do nothing: the job has no blocks."""

    async def receive(
        self, peer: Any, transfer: str, admit: _Admit, timeout_s: float
    ) -> ReceivedKv:
        """Receive the KV at once."""
        await admit(OfferedKv(1, 1, 0))
        return ReceivedKv(0, 1, 1, 0.0, 0.0, time.monotonic())

    async def _run(self, step_ms: int, tokens: int) -> None:
        """Step while the batch has jobs. A late step does not shorten the next interval."""
        jobs = self._batches[step_ms, tokens]
        due = time.monotonic()
        while jobs:
            due = max(due + step_ms / 1000, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            for job in list(jobs.values()):
                self._give(job, tokens, jobs)
        del self._tasks[step_ms, tokens]

    def load(self) -> ReplicaLoad:
        """The number of running requests."""
        return replace(_LOAD, running=sum(map(len, self._batches.values())))

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
    """A fake replica: its record, the server of its calls, and a function that ends it.

    `echo` is the address of a bare gRPC server, to measure one hop.
    """

    record: ReplicaRecord
    echo: str
    answer: Serve
    close: Close


async def _unguided(_: Sequence) -> None:
    """Prepare no grammar."""


async def serve(
    role: Pool, directory: Directory, config: TandemConfig, prefill_s: float = 0.0
) -> Fake:
    """Start a fake replica of the configuration's model and register it."""
    if role == "prefill":
        prefill: Any = SteadyPrefill(prefill_s)
        load = prefill.load
        answer: Serve = PrefillServicer(prefill, prefill, PlaceText, 60.0, _unguided).serve  # type: ignore[arg-type]
    else:
        decode: Any = SteadyDecode()
        load = decode.load
        answer = DecodeServicer(decode, decode, PlaceText, 60.0, _unguided).serve  # type: ignore[arg-type]
    calls, sock = CallServer({role: answer}), listening_socket(_HOST, 0)
    # Without reports routers would open their stream again and again.
    reports = StreamServer(LoadReporter(load).serve, 64)
    membership, echo = Membership.of(config), grpc.aio.server()
    wire = membership.server({"calls": calls.accept, "reports": reports.accept})
    echo_port = await _start_echo(echo)
    record = ReplicaRecord(
        f"{role}-0",
        role,
        join(_HOST, sock.getsockname()[1]),
        time.time_ns(),
        model_identity=describe(config.model).identity,
        load=_LOAD,
    )
    await wire.start(sock, record.address)
    await directory.register(record)
    heartbeat = LeaseHeartbeat(directory, record, load)
    heartbeat.start()

    async def close() -> None:
        await heartbeat.stop()
        await wire.stop()
        await calls.stop()
        await reports.stop()
        await echo.stop(0)

    return Fake(record, join(_HOST, echo_port), answer, close)


async def _start_echo(server: grpc.aio.Server) -> int:
    """Start the server of `ECHO` on a free port; returns the port."""
    _, service, method = ECHO.split("/")
    handlers: dict[str, Any] = {method: grpc.unary_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port(f"{_HOST}:0")
    await server.start()
    return port


async def main(url: str, role: Pool, model: str, prefill_s: float) -> None:
    """Serve one replica until standard input ends. A prefill replica has its own front ends."""
    config = config_for(url, model)
    directory = Directory.of(config)
    fake = await serve(role, directory, config, prefill_s)
    found: dict[str, str] = {role: fake.echo}
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
