"""Breaks a cluster of real processes again and again, and counts what its clients notice.

`open` streams had begun and not ended when the fault came. The longest pause of a stream includes
the time until its first token.

    python -m tests.chaos.main [--runs 1000] [--seed 1] [--first 0] [--results FOLDER]

Run `--runs 1 --first N` with the same seed repeats run N.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.results import Series, keep, value_of
from bench.core.statistics import percentile
from tandem_client import Client
from tests.chaos.members import members
from tests.chaos.run import Chaos, Outcome

_FATES = (
    "exact", "tie", "unjournaled", "broken", "refused", "cancelled",
    "lost", "repeated", "wrong", "endless",
)  # fmt: skip
_PAUSES = ("p50 s", "p99 s")
_HEADER = ("fault", "runs", "delivered", "streams", "open", *_FATES, "leaks", *_PAUSES)


def rows(outcomes: list[Outcome]) -> list[list[str]]:
    """A row for each fault, and one for all."""
    by_fault: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_fault.setdefault(str(outcome.fault), []).append(outcome)
    return [
        _row(name, some) for name, some in [*sorted(by_fault.items()), ("all", outcomes)] if some
    ]


def _row(name: str, outcomes: list[Outcome]) -> list[str]:
    streams = [stream for outcome in outcomes for stream in outcome.streams]
    fates = Counter(stream.fate for stream in streams)
    pauses = [one.longest_s for one in streams if one.fate in ("exact", "tie")] or [0.0]
    counts = [
        len(outcomes),
        sum(outcome.delivered for outcome in outcomes),
        len(streams),
        sum(outcome.open for outcome in outcomes),
        *(fates[fate] for fate in _FATES),
        sum(bool(outcome.leaked) for outcome in outcomes),
    ]
    points = [f"{percentile(pauses, share):.2f}" for share in (0.5, 0.99)]
    return [name, *map(str, counts), *points]


def _series(
    row: list[str], machine: Mapping[str, str], conditions: dict[str, str | int | float]
) -> Series:
    """A row of the table as figures."""
    streams = int(row[_HEADER.index("streams")])
    figures = {
        name: value_of(float(number), "s" if name in _PAUSES else "", streams, "streams")
        for name, number in zip(_HEADER[1:], row[1:], strict=True)
    }
    return Series(
        name=row[0],
        commit=machine["commit"],
        date=machine["date"],
        conditions=conditions,
        figures=figures,
    )


def main() -> int:
    """Break, and print the table; 1 where something was lost, wrong or left."""
    options = _parse()
    began = time.monotonic()
    outcomes = list[Outcome]()
    with suppress(KeyboardInterrupt):  # the runs so far are shown
        asyncio.run(_run(options, outcomes))
    machine = describe_machine()
    print(f"{now()}; {as_line(machine)}; {time.monotonic() - began:.0f} s\n")
    print(table(_HEADER, rows(outcomes)))
    moments = Counter(one.moment for one in outcomes if one.reached)
    print("\nat a state: " + ", ".join(f"{name} {count}" for name, count in moments.items()))
    bad = [f"run {one.number}, {one.fault}, {one.moment}: {w}" for one in outcomes for w in one.bad]
    print(*bad, sep="\n")
    if options.results:
        conditions = {"runs": len(outcomes), "seed": options.seed, "first": options.first}
        each = [_series(row, machine, conditions) for row in rows(outcomes)]
        print(keep(options.results, "chaos", machine, each))
    return bool(bad)


async def _run(options: argparse.Namespace, outcomes: list[Outcome]) -> None:
    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        fates = Counter(stream.fate for stream in outcome.streams)
        said = ", ".join(f"{count} {fate}" for fate, count in fates.items())
        undelivered = "" if outcome.delivered else ", not delivered"
        longest = max((stream.longest_s for stream in outcome.streams), default=0.0)
        at = f" at {outcome.moment}" if outcome.reached else ""
        print(f"{outcome.number}: {outcome.fault}{at}{undelivered}: {said}; {longest:.1f} s")
        for bad in outcome.bad:
            print(f"    {bad}")
        sys.stdout.flush()

    async with members(options.transport) as found:
        try:
            async with Client(found.doors) as client:
                chaos = Chaos(found, client, options.seed)
                await chaos.prepare()
                for number in range(options.first, options.first + options.runs):
                    note(await chaos.run(number))
            print(*found.errors(), sep="\n")
        finally:
            if options.logs:
                shutil.copytree(found.folder, options.logs, ignore=_but_logs, dirs_exist_ok=True)


def _but_logs(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".log")]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--transport", default="auto", help="see kv.transport")
    parser.add_argument("--logs", type=Path, help="a folder for the members' logs")
    parser.add_argument("--results", type=Path, help="the folder in which the table is kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
