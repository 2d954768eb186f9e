"""The client without an event loop, against a real server in another thread."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.gateway.grpc_server import GrpcServer, start
from tandem_client import Client, Started, Summary, SyncClient, Tokens, errors
from tandem_client.loop_thread import LoopThread
from tests.cluster.scripted_generator import ScriptedGenerator

WAIT_S = 30.0
SCRIPT = """
import sys
from tandem_client import SyncClient
client = SyncClient(sys.argv[1])
events = client.generate("a", request_id="left")
print(next(events).model)
"""


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator()


@pytest.fixture
def server(generator: ScriptedGenerator) -> Iterator[GrpcServer]:
    thread = LoopThread()
    server = thread.run(start(generator))
    yield server
    thread.run(server.stop(0))
    thread.close()


@pytest.fixture
def client(server: GrpcServer) -> Iterator[SyncClient]:
    with SyncClient(f"127.0.0.1:{server.port}", timeout_s=WAIT_S) as opened:
        yield opened


def until_closed(generator: ScriptedGenerator, name: str) -> None:
    ends_s = time.monotonic() + WAIT_S
    while name not in generator.closed:
        assert time.monotonic() < ends_s
        threading.Event().wait(0.01)


def test_the_calls_are_those_of_the_client(client: SyncClient) -> None:
    got = list(client.generate("a b", max_tokens=2))
    assert [type(event) for event in got] == [Started, Tokens, Tokens, Summary]
    assert client.complete("a b", n=2, max_tokens=3).choices[1].text == "one two three"
    assert client.score([[1, 2, 3]])[0].scores.logprobs == pytest.approx([-0.1, -0.2])
    assert client.model().name == "demo"
    assert not client.cancel("r0")
    stream_id = next(iter(client.generate("a", resumable=True))).stream_id
    assert [event.index for event in client.resume(stream_id, [2]) if isinstance(event, Tokens)]


def test_errors_and_deadlines(client: SyncClient, generator: ScriptedGenerator) -> None:
    with pytest.raises(errors.NotFound):
        client.complete("a", model="other")
    generator.endless, generator.pause_s = True, 30.0
    with pytest.raises(errors.DeadlineExceeded):
        list(client.generate("a", timeout_s=0.2))


def test_closing_the_iterator_cancels(client: SyncClient, generator: ScriptedGenerator) -> None:
    generator.endless, generator.pause_s = True, 0.01
    for event in client.generate("a", request_id="r1"):
        if isinstance(event, Tokens):
            break
    until_closed(generator, "r1")


def test_another_thread_cancels(client: SyncClient, generator: ScriptedGenerator) -> None:
    generator.endless, generator.pause_s = True, 0.01
    events = client.generate("a", request_id="r1")
    next(events)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(client.cancel("r1")))
    other.start()
    with pytest.raises(errors.Cancelled):
        list(events)
    other.join(WAIT_S)
    assert found == [True]


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_an_interrupt_cancels_the_call_and_leaves_the_client(
    client: SyncClient, generator: ScriptedGenerator, way: str
) -> None:
    def interrupt() -> None:
        while not generator.started:
            threading.Event().wait(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    generator.endless, generator.pause_s = True, 30.0
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        if way == "whole":
            client.complete("a", request_id="r1")
        else:
            list(client.generate("a", request_id="r1"))
    until_closed(generator, "r1")
    generator.endless, generator.pause_s = False, 0.0
    assert client.complete("a").text == "one two three four"


async def test_it_works_inside_a_running_loop(client: SyncClient) -> None:
    assert client.complete("a").text == "one two three four"


def test_a_closed_client_says_so(client: SyncClient, generator: ScriptedGenerator) -> None:
    generator.endless, generator.pause_s = True, 0.01
    events = client.generate("a", request_id="r1")
    next(events)
    client.close()
    client.close()
    until_closed(generator, "r1")
    with pytest.raises(RuntimeError, match="closed"):
        next(events)
    with pytest.raises(RuntimeError, match="closed"):
        client.model()


def test_closing_in_another_thread_ends_a_call(
    client: SyncClient, generator: ScriptedGenerator
) -> None:
    def close() -> None:
        while not generator.started:
            threading.Event().wait(0.01)
        client.close()

    generator.endless, generator.pause_s = True, 30.0
    threading.Thread(target=close).start()
    with pytest.raises(errors.Cancelled):
        client.complete("a", request_id="r1")
    until_closed(generator, "r1")


def test_threads_may_close_it_together(server: GrpcServer) -> None:
    for _ in range(10):
        client = SyncClient(f"127.0.0.1:{server.port}")
        client.complete("a", max_tokens=1)
        with ThreadPoolExecutor(8) as threads:
            for closed in [threads.submit(client.close) for _ in range(8)]:
                closed.result(WAIT_S)


def test_a_loop_that_ends_closes_streams_in_any_order(
    server: GrpcServer, generator: ScriptedGenerator
) -> None:
    """The order is that of a set, so it differs from try to try."""
    generator.endless, generator.pause_s = True, 0.01
    told: list[dict[str, object]] = []

    async def leave(resumable: bool) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        client = Client(f"127.0.0.1:{server.port}")
        events = client.generate("a", request_id=f"r{len(kept)}", resumable=resumable)
        kept.append(events)
        await anext(events)

    kept: list[object] = []
    for number in range(20):
        asyncio.run(leave(resumable=number % 2 == 0))
    assert [one for one in told if "asyncgen" in one] == []


def test_a_program_ends_without_closing(server: GrpcServer, generator: ScriptedGenerator) -> None:
    generator.endless, generator.pause_s = True, 0.01
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"127.0.0.1:{server.port}"],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("demo\n", "", 0)
    until_closed(generator, "left")
