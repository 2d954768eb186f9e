"""Holds many streams open on one router, a part of them with slow readers, and watches its memory.

    python -m bench.router.open_streams [--streams 2000] [--minutes 10] [--slow 3]

Streams that have ended begin again, so the number of open streams stays the same. A slow reader
takes half of what its stream brings.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.results import Series, figure, keep, series_of, value_of
from bench.router.site import Site, site_of
from bench.router.stream_load import OutOfOrder, SseStreams, Streams, StreamSpec, Taken
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.work_progress import WorkProgress

_SAMPLE_S = 5.0
# Each stream brings 24 tokens a second for 100 s, in messages of 24.
_SPEC = StreamSpec("coalesced", 1000, 24, most=2400)
# The streams do not begin at the same moment.
_BEGIN_S = 15.0
# A slow reader takes a piece of so many bytes, and then rests; its window stays small.
_SLOW_BYTES, _SLOW_REST_S, _SLOW_WINDOW = 1024, 4.0, 4096


@dataclass(slots=True)
class OpenStreams:
    """What a run saw: memory of the router by time, ended streams, and errors of dropped ones."""

    rss_mib: list[tuple[float, float]] = field(default_factory=list)
    opened: int = 0
    ended: int = 0
    open: int = 0
    dropped: list[str] = field(default_factory=list)

    def growth(self) -> float:
        """The memory of the last quarter over that of the second one; 1 is flat."""
        sizes = [size for _, size in self.rss_mib]
        quarter = max(1, len(sizes) // 4)
        before, after = sizes[quarter : 2 * quarter] or sizes, sizes[-quarter:]
        return (sum(after) / len(after)) / (sum(before) / len(before))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--slow", type=int, default=3, help="each so many-th reader is slow")
    parser.add_argument("--front-ends", nargs="+", default=["grpc", "http"])
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    redis, seen = EmbeddedRedis.start(), OpenStreams()
    try:
        with site_of(redis.url, 0.0) as site:
            asyncio.run(_hold(site, options, seen))
    finally:
        redis.stop()
    machine = describe_machine()
    print(f"{now()}; {as_line(machine)}\n\n{report(seen)}")
    if options.results:
        names = ("streams", "minutes", "slow")
        conditions = {name: getattr(options, name) for name in names}
        keep(options.results, "streams", machine, [as_series(seen, machine, conditions)])


def report(seen: OpenStreams) -> str:
    """The memory by time, and the sums, in Markdown."""
    step = max(1, len(seen.rss_mib) // 20)
    rows = [(f"{at_s:.0f}", f"{size:.1f}") for at_s, size in seen.rss_mib[::step]]
    sums = (
        f"{seen.opened} streams begun, {seen.ended} complete, {seen.open} open at the end, "
        f"{len(seen.dropped)} dropped; memory {seen.growth():.3f} times that of before."
    )
    reasons = sorted(set(seen.dropped))[:5]
    return "\n".join((table(("s", "router, MiB"), rows), "", sums, *reasons))


def as_series(
    seen: OpenStreams, machine: dict[str, str], conditions: dict[str, str | int | float]
) -> Series:
    """The series of one run."""
    figures = {
        "memory": figure([size for _, size in seen.rss_mib], "MiB", "samples"),
        "memory: last quarter over second": value_of(seen.growth(), "x", 1, "runs"),
        "dropped": value_of(len(seen.dropped), "streams", seen.opened, "streams"),
    }
    return series_of("open streams", machine, conditions, figures)


async def _hold(site: Site, options: argparse.Namespace, seen: OpenStreams) -> None:
    clients = [site.streams(front_end) for front_end in options.front_ends]
    until_s = time.monotonic() + 60 * options.minutes
    slow = _SlowStreams(site.front_ends["http"])
    readers = [
        asyncio.create_task(
            _read(slow if number % options.slow == 0 else clients[number % len(clients)], seen)
        )
        for number in range(options.streams)
    ]
    began_s = time.monotonic()
    with WorkProgress("open streams", 60 * options.minutes, "s") as progress:
        while (now_s := time.monotonic()) < until_s:
            progress.at(now_s - began_s)
            await asyncio.sleep(min(_SAMPLE_S, 60 * options.minutes / 4))
            seen.rss_mib.append((time.monotonic() - began_s, _rss_mib(site.router)))
    seen.open = sum(not reader.done() for reader in readers)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, *(client.close() for client in clients), return_exceptions=True)


async def _read(client: Streams, seen: OpenStreams) -> None:
    """Read one stream after the other to its end, and check each."""
    await asyncio.sleep(random.random() * _BEGIN_S)
    while True:
        taken = Taken()
        seen.opened += 1
        try:
            await client.run(_SPEC, taken)
            _, tokens = client.check(taken, 0, len(taken.pieces))
            if tokens != _SPEC.most:
                raise OutOfOrder(f"a stream ended after {tokens} tokens")
            seen.ended += 1
        except Exception as error:
            seen.dropped.append(f"{type(error).__name__}: {error}"[:200])
            await asyncio.sleep(1.0)


class _SlowStreams(SseStreams):
    """Streams whose reader takes a little, and then nothing for a while."""

    async def run(self, spec: StreamSpec, taken: Taken) -> None:
        """See Streams."""
        reader, writer = await self.open(limit=_SLOW_BYTES, window=_SLOW_WINDOW)
        try:
            writer.write(self.request(spec))
            while piece := await reader.read(_SLOW_BYTES):
                taken.pieces.append(piece)
                if piece.endswith(b"0\r\n\r\n"):
                    break
                await asyncio.sleep(_SLOW_REST_S * len(piece) / _SLOW_BYTES)
        finally:
            writer.transport.abort()


def _rss_mib(process: int) -> float:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
