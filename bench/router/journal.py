"""Measures what the journal costs: resumable streams beside plain ones, by turns in one run.

python -m bench.router.journal [--streams 500] [--seconds 3] [--turns 4]
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.results import Figure, keep, series_of, value_of
from bench.core.statistics import percentile
from bench.router.main import PROBE, open_streams, probe
from bench.router.site import Site, site_of
from bench.router.stream_load import StreamSpec, first_token_s
from cluster.api.event_streams import end
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.work_progress import tracked

# Messages per second that the replicas are asked for: above the capacity of the router.
_ASKED_PER_S = 24_000
_SETTLE_S = 1.0
_DEADLINE_S = 60.0
_FRONT_ENDS = {"grpc": "gRPC", "http": "HTTP"}


def main() -> None:
    """Measure, print, and keep the figures where asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    options = parser.parse_args()
    redis = EmbeddedRedis.start()
    try:
        with site_of(redis.url, 0.0) as site:
            found = asyncio.run(_measure(site, options))
    finally:
        redis.stop()
    machine = describe_machine()
    rows = [[name, f"{one.value:.3f}"] for name, one in found.items()]
    print(f"{now()}; {as_line(machine)}\n\n{table(('resumable over plain', 'value'), rows)}")
    if options.results:
        conditions = {"streams": options.streams, "seconds": options.seconds}
        series = series_of("journal", machine, conditions, found)
        keep(options.results, "router", machine, [series])


async def _measure(site: Site, options: argparse.Namespace) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for front_end, title in _FRONT_ENDS.items():
        plain, resumable = [], []
        for _ in tracked(f"journal, {title}", range(options.turns)):
            plain.append(await full_speed(site, front_end, options))
            resumable.append(await full_speed(site, front_end, options, resumable=True))
        ratios = sorted(b / a for a, b in zip(plain, resumable, strict=True))
        for what, ratio in (("least", ratios[0]), ("p50", percentile(ratios, 0.5))):
            name = f"{title}: tokens/s, {what}"
            found[name] = value_of(ratio, "ratio", options.turns, "turns")
        more_ms = await _first_token_ms(site, front_end, options)
        found[f"{title}: first token p50, more"] = value_of(more_ms, "ms", 1, "runs")
    return found


async def full_speed(
    site: Site, front_end: str, options: argparse.Namespace, *, resumable: bool = False
) -> float:
    """Tokens per second of all streams together, asked for more than the router can do."""
    step_ms = max(1, round(1000 * options.streams / _ASKED_PER_S))
    client = site.streams(front_end)
    async with asyncio.timeout(_DEADLINE_S + 10 * options.seconds):
        spec = StreamSpec("each", step_ms, resumable=resumable)
        taken, tasks = await open_streams(client, spec, options.streams)
        await asyncio.sleep(_SETTLE_S)
        marks = [len(one.pieces) for one in taken]
        await asyncio.sleep(options.seconds)
        ends = [len(one.pieces) for one in taken]
        await end(tasks)
        tokens = sum(client.check(*one)[1] for one in zip(taken, marks, ends, strict=True))
        await client.close()
    seconds: float = options.seconds
    return tokens / seconds


async def _first_token_ms(site: Site, front_end: str, options: argparse.Namespace) -> float:
    """How much later the first token of a resumable request comes, at the median, in ms."""
    client = site.streams(front_end)
    kept = replace(PROBE, resumable=True)
    ways = (
        lambda: first_token_s(lambda taken: client.run(PROBE, taken)),
        lambda: first_token_s(lambda taken: client.run(kept, taken)),
    )
    plain, resumable = await probe(ways, 4 * options.seconds)
    await client.close()
    return 1000 * (percentile(resumable, 0.5) - percentile(plain, 0.5))


if __name__ == "__main__":
    main()
