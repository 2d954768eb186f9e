"""`make bench-peers`: Tandem and its peers in turn, round after round, on the same prompts.

Only one runs at a time. What each round finds is kept in a file, so that a run can be made in
parts: `--only NAME --keep` adds to what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bench.compare.comparison import RoundResult, as_markdown, as_series
from bench.core.engine_plan import Measurement
from bench.core.host_info import commit, describe_machine, now
from bench.core.results import keep
from bench.systems.cli_paths import add_paths, open_record, prepare
from bench.systems.peer_systems import SYSTEMS
from bench.systems.services import CliPaths
from cluster.work_progress import tracked

# In process every prompt is computed before the batch is decoded, so 64 tokens are enough.
_INSIDE = dict.fromkeys((1, 8, 32), 64)


def visit(name: str, number: int, paths: CliPaths, repeats: int) -> RoundResult:
    """Measure one system in one round; an error becomes a line in the report."""
    inside = name in ("llama", "tandem-in-process")
    plan = (
        Measurement(repeats=repeats, new_tokens=_INSIDE) if inside else Measurement(repeats=repeats)
    )
    started = time.monotonic()
    try:
        figures = SYSTEMS[name].visit(paths, plan, f"round {number}")
        result = RoundResult(name, number, figures.columns, None, now(), commit())
    # The other systems are still measured.
    except Exception as error:
        result = RoundResult(name, number, {}, f"{type(error).__name__}: {error}", now(), commit())
    spent = time.monotonic() - started
    print(f"round {number}, {name}, {spent:.0f} s: {result.line()}", flush=True)
    return result


def load(path: Path) -> list[RoundResult]:
    """The results of earlier parts of a run."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [RoundResult(**json.loads(line)) for line in lines]


def write_results(rounds: list[RoundResult], results: Path) -> None:
    """Write rates and ratios, if any were measured; prints them in any case."""
    machine = describe_machine()
    print(as_markdown(rounds, machine))
    if any(not each.error for each in rounds):
        count = max(each.round for each in rounds)
        keep(results, "peers", machine, [as_series(rounds, {"rounds": count})])


def main() -> None:
    """See the module."""
    options = _options()
    paths = prepare(options)
    record = open_record(options, "peers.jsonl")
    for name in tracked("peers", [*(options.only or SYSTEMS)] * options.rounds, str):
        number = 1 + sum(earlier.system == name for earlier in load(record))
        result = visit(name, number, paths, options.repeats)
        with record.open("a") as file:
            file.write(result.as_json() + "\n")
    write_results(load(record), options.results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", action="append", choices=SYSTEMS, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4, help="of each figure in a round")
    add_paths(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
