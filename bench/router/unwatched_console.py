"""Measures what the console costs a router: with pages that look, and while nobody looks.

    python -m bench.router.unwatched_console [--streams 500] [--seconds 5] [--viewers 3]

The router runs in this process, and its clients in another one. A profile hook adds up the CPU of
the event loop's thread in the console's own code. The hook slows this code down, so the share is an
upper bound. The pages look first and leave, for two reasons: the first share shows that the hook
finds the console, and the second share has what pages leave behind.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import cluster.console
import cluster.router.console
from bench.core.event_loop import new_loop
from bench.core.host_info import as_line, describe_machine, now
from bench.router.bare_router import config_for, endless_model
from bench.router.site import process_of
from cluster.api.event_streams import end
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from cluster.replica.gc_tuning import settle
from cluster.router.server import RouterServer

_FOLDERS = (*cluster.console.__path__, *cluster.router.console.__path__)
_STEP_MS = "500"
_ANSWERS_S = 10.0
# Within this time a page that left is gone.
_SETTLE_S = 3.0
_PIECE = 1 << 16


class ConsoleShare(NamedTuple):
    """The part of a core in the console's code, and the calls into it per second."""

    of_core: float
    calls_per_s: float


class _ConsoleHook:
    """A profile hook: the CPU seconds of its thread in the console's code, and the calls into it.

    What the console calls counts as its own.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._inside = 0
        self._began_s = 0.0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            if self._inside:
                self._inside += 1
            elif frame.f_code.co_filename.startswith(_FOLDERS):
                self._inside, self._began_s = 1, time.thread_time()
                self.calls += 1
        elif event == "return" and self._inside:
            self._inside -= 1
            if not self._inside:
                self.seconds += time.thread_time() - self._began_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--viewers", type=int, default=3, help="open consoles")
    options = parser.parse_args()
    watched, unwatched = console_shares(options.streams, options.seconds, options.viewers)
    print(f"{now()}; {as_line(describe_machine())}\n")
    for name, one in ((f"{options.viewers} pages look", watched), ("nobody looks", unwatched)):
        print(f"{name}: {one.of_core:.3%} of a core, {one.calls_per_s:.1f} calls/s")


def console_shares(streams: int, seconds: float, viewers: int) -> tuple[ConsoleShare, ConsoleShare]:
    """The console's share while pages look, and after they left, beside that many streams."""
    redis = EmbeddedRedis.start()
    with ExitStack() as stack:
        stack.callback(redis.stop)
        model = endless_model(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        for pool in ("prefill", "decode"):
            fake = process_of("bench.router.fake_replicas", redis.url, pool, model, "0.0")
            _, read = stack.enter_context(fake)
            read()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_measure(redis.url, model, streams, seconds, viewers))


async def _measure(
    url: str, model: str, streams: int, seconds: float, viewers: int
) -> tuple[ConsoleShare, ConsoleShare]:
    config = config_for(url, model)
    router = await RouterServer.start(config, "router-0", Directory.of(config))
    settle()
    loads = ["grpc", router.grpc_address, "", str(streams), _STEP_MS]
    with process_of("bench.router.main", "--load", *loads) as (_, read):
        await asyncio.to_thread(read)
        async with AsyncExitStack() as pages:
            for _ in range(viewers):
                await pages.enter_async_context(open_page(router.http_address))
            watched = await _share(seconds)
        await asyncio.sleep(_SETTLE_S)
        unwatched = await _share(seconds)
    await router.stop()
    return watched, unwatched


async def _share(seconds: float) -> ConsoleShare:
    hook = _ConsoleHook()
    sys.setprofile(hook)
    await asyncio.sleep(seconds)
    sys.setprofile(None)
    return ConsoleShare(hook.seconds / seconds, hook.calls / seconds)


@asynccontextmanager
async def open_page(address: str) -> AsyncIterator[None]:
    """A page that looks at the router there; ConnectionError where the router has no console."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /console/feed HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
    status = await asyncio.wait_for(reader.readline(), _ANSWERS_S)
    if b" 200 " not in status:
        raise ConnectionError(f"the console answered {status!r}")
    reading = asyncio.create_task(_read(reader))
    try:
        yield
    finally:
        writer.close()
        await end([reading])


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PIECE):
        pass


if __name__ == "__main__":
    main()
