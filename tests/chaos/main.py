"""Breaks a cluster of real processes again and again, and counts what its clients notice.

`open` streams had begun and not ended when the fault came. The longest pause of a stream includes
the time until its first token.

    python -m tests.chaos.main [--ray] [--runs 1000] [--seed 1] [--minutes M --continue]

`--minutes` ends before a run that would begin later. `--continue` goes on with the runs that are
missing. `--run N` repeats one run and keeps nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.core.host_info import as_line, commit, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.results import RESULTS, keep
from cluster.work_progress import tracked
from tests.chaos.members import members
from tests.chaos.members_target import MembersTarget
from tests.chaos.ray_target import ray_target
from tests.chaos.record import HEADER, Record, RunLog, as_cells, as_series, by_fault, row
from tests.chaos.run import Chaos
from tests.chaos.web_clients import Clients


def main() -> int:
    """Break, and print the table; 1 where something was lost, wrong or left."""
    options = _parse()
    began = time.monotonic()
    form = "Ray" if options.ray else "processes"
    log, numbers = RunLog(), [options.run]
    if options.run is None:
        name = f"chaos-{form.lower()}-{options.seed}.jsonl"
        log = RunLog(options.cache / name, anew=not options.go_on)
        numbers = log.missing(options.runs)
    with suppress(KeyboardInterrupt):  # the runs so far are shown
        asyncio.run(_run(options, numbers, log))
    machine = describe_machine()
    print(f"{now()}; {as_line(machine)}; {time.monotonic() - began:.0f} s\n")
    print(summary(log.records))
    if options.run is None and log.records:
        each = as_series(form, log.records, options.seed, machine)
        print(keep(options.results, "chaos", machine, each))
    return not log.records or any(one.bad for one in log.records)


def summary(records: list[Record]) -> str:
    """The table, the states at which faults came, and everything that must not be."""
    lines = [[fault, *as_cells(row(some))] for fault, some in by_fault(records).items() if some]
    moments = Counter(one.moment for one in records if one.moment)
    front_ends = sum((Counter(one.front_ends) for one in records), Counter())
    bad = [
        f"run {one.number}, {one.fault}, {one.moment}: {why}" for one in records for why in one.bad
    ]
    return "\n".join(
        [
            table(("fault", *HEADER), lines),
            "\nat a state: " + _told(moments),
            "over: " + _told(front_ends),
            *bad,
        ]
    )


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


async def _run(options: argparse.Namespace, numbers: list[int], log: RunLog) -> None:
    until_s = time.monotonic() + options.minutes * 60
    at = commit()
    async with _opened(options) as chaos:
        for number in tracked("chaos", numbers):
            if time.monotonic() > until_s:
                return
            record = Record.of(await chaos.run(number), at)
            print(record, flush=True)
            log.add(record)


@asynccontextmanager
async def _opened(options: argparse.Namespace) -> AsyncIterator[Chaos]:
    if options.ray:
        async with (
            ray_target() as target,
            Clients([target.grpc], [target.http]) as clients,
        ):
            chaos = Chaos(target, clients, options.seed)
            await chaos.prepare()
            yield chaos
        return
    async with members(options.transport) as found:
        try:
            async with Clients(found.doors, found.http_doors) as clients:
                chaos = Chaos(MembersTarget(found), clients, options.seed)
                await chaos.prepare()
                yield chaos
            print(*found.errors(), sep="\n")
        finally:
            if options.logs:
                shutil.copytree(found.folder, options.logs, ignore=_but_logs, dirs_exist_ok=True)


def _but_logs(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".log")]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ray", action="store_true", help="break `tandem serve` with its Ray")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="keep earlier runs")
    parser.add_argument("--run", type=int, help="the number of the only run")
    parser.add_argument("--transport", default="auto", help="see kv.transport; not with --ray")
    parser.add_argument("--logs", type=Path, help="a folder for the members' logs; not with --ray")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="where runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
