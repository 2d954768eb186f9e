"""`make bench-burst` and `make bench-itl`: vLLM and both of Tandem's modes in turn, on one load.

Only one runs at a time, round after round, on the same seeds. What each run finds is kept in a
file, so that a comparison can be made in parts: `--only NAME --keep` adds to what is there.
`--pairs N` runs both of Tandem's modes N times on a short load and writes no file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from bench.compare.burst_figures import as_series
from bench.compare.burst_measurement import Measured, failures, of_each, of_error, of_itl, of_load
from bench.compare.burst_report import ITL, as_markdown, loads
from bench.core.host_info import commit, describe_machine, now
from bench.core.prompts import count_tokens
from bench.core.results import keep
from bench.load.arrivals import Load
from bench.load.closed_loop import ServerTarget
from bench.load.html_report import run_page
from bench.load.open_loop import Rules, Show
from bench.load.run_record import Sender
from bench.load.traces import FITTED
from bench.systems.cli_paths import add_paths, open_record, prepare
from bench.systems.contenders import (
    BURST_LOAD,
    CONTENDERS,
    POOLS,
    RETRY_LOAD,
    SINGLE,
    TANDEM_CONFIG_EACH_TOKEN,
    VLLM,
    BurstShape,
    any_load,
    itl_load,
    warm_load,
)
from bench.systems.services import CliPaths
from cluster.work_progress import WorkProgress

_DEADLINE_S = 90.0
_COMPILE_S = 600.0
_BENCHMARKS = {BURST_LOAD: "burst", RETRY_LOAD: "burst", ITL: "itl"}


@dataclass(frozen=True, slots=True)
class Bout:
    """The loads of one visit to a system, by name, each with seeds from 1 up."""

    names: Sequence[str]
    seeds: int
    shape: BurstShape
    paths: CliPaths
    traces: Path

    @property
    def runs(self) -> int:
        """The loads of a visit, with each of their seeds."""
        return len(self.names) * self.seeds

    def visit(self, system: str, number: int, keep: Callable[[Measured], None], show: Show) -> None:
        """Start a system, warm it up, send every load with every seed, end it.

        `show` is told how many of `runs` have ended, and what is under way.
        """
        config = TANDEM_CONFIG_EACH_TOKEN if ITL in self.names else self.shape.tandem_config
        try:
            show(0, f"{system} starts")
            service = CONTENDERS[system].start(self.paths, config)
            with service.running(self.paths.logs) as server:
                show(0, f"{system} warms up")
                asyncio.run(Sender().send(system, server, warm_load(number), {}, None))
                each = product(self.names, range(1, self.seeds + 1))
                for done, (name, seed) in enumerate(each):
                    under_way = partial(_show_load, show, done, f"{system}, {name}, seed {seed}")
                    keep(self._measured(system, number, name, seed, server, under_way))
        # The other systems are still measured.
        except Exception as error:
            told, name = of_error(error), self.names[0]
            keep(Measured(system, number, name, 0, error=told, at=now(), commit=commit()))

    def load(self, name: str, seed: int) -> Load:
        """The load of that name; raises OSError or ValueError where a trace cannot be read."""
        return itl_load(seed) if name == ITL else any_load(name, self.shape, seed, self.traces)

    def _measured(
        self, system: str, number: int, name: str, seed: int, server: ServerTarget, show: Show
    ) -> Measured:
        load = self.load(name, seed)
        slow = self.shape.slow
        returns = 1 if name == RETRY_LOAD else 0
        rules = Rules(_DEADLINE_S * slow, returns, longest_wait_s=Rules().longest_wait_s * slow)
        sender = Sender(rules, self.shape.budgets, count_tokens, show)
        title = CONTENDERS[system].title
        run = asyncio.run(sender.send(title, server, load, describe_machine(), None))
        page = self.paths.logs / f"{name}-{system}-{number}-{seed}.html"
        page.write_text(run_page(run))
        about = f"{load.title}; the refused come back once" if rules.returns else load.title
        counts, values = of_itl(run) if name == ITL else of_load(run)
        within_goals, itls = ([], []) if name == ITL else of_each(run)
        return Measured(
            *(system, number, name, seed, counts, values),
            failures=failures(run),
            about=about,
            at=now(),
            commit=commit(),
            slow=slow,
            shrink=self.shape.shrink,
            each_within_goals=within_goals,
            each_itl=itls,
        )


def load_record(path: Path) -> list[Measured]:
    """The measurements of earlier parts."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [Measured(**json.loads(line)) for line in lines]


def main() -> None:
    """See the module."""
    options = _options()
    paths = prepare(options)
    _compile_operations()
    names = [ITL] if options.itl else options.load or [BURST_LOAD]
    bout = Bout(names, options.seeds, _shape(options), paths, options.traces)
    if options.pairs:
        with tempfile.TemporaryDirectory() as folder:
            compare(bout, [POOLS, SINGLE], options.pairs, Path(folder) / "pairs.jsonl")
        return
    what = ITL if options.itl else "burst"
    record = open_record(options, f"{what}.jsonl")
    runs = compare(bout, options.only or [VLLM, SINGLE, POOLS], options.rounds, record)
    write_results(runs, options.results)


def compare(bout: Bout, systems: Sequence[str], rounds: int, record: Path) -> list[Measured]:
    """All systems in turn, round after round; prints each run and, at the end, the report."""
    keep, visits = partial(_keep, record), [*systems] * rounds
    with WorkProgress("runs", len(visits) * bout.runs) as progress:
        for visited, system in enumerate(visits):
            number = _next_round(load_record(record), system, bout.names)
            show = partial(_show_visit, progress, visited * bout.runs)
            bout.visit(system, number, keep, show)
    runs = load_record(record)
    print(as_markdown(runs, describe_machine()))
    return runs


def _next_round(runs: list[Measured], system: str, loads: Sequence[str]) -> int:
    """The next round of the system with these loads; other loads do not count."""
    earlier = (one.round for one in runs if one.system == system and one.load in loads)
    return 1 + max(earlier, default=0)


def write_results(runs: list[Measured], results: Path) -> None:
    """Write the figures of each measured load, beside the figures kept already."""
    ended = [each for each in runs if not each.error]
    for load in loads(ended):
        benchmark = _BENCHMARKS.get(load, "traces")
        keep(results, benchmark, describe_machine(), [as_series(ended, load)])


def _compile_operations() -> None:
    """Compile Tandem's C++ operations, so that no measured start compiles them."""
    code = "from engine import kernels; kernels.why_not_loaded()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=_COMPILE_S)


def _keep(record: Path, run: Measured) -> None:
    with record.open("a") as file:
        file.write(run.as_json() + "\n")
    where = f"round {run.round}, {run.system}, {run.load}, seed {run.seed}"
    print(f"{run.at} {where}: {run.line()}", flush=True)


def _shape(options: argparse.Namespace) -> BurstShape:
    shape = BurstShape(options.rate, options.burst_factor, shrink=options.shrink, slow=options.slow)
    return shape.short() if options.pairs or options.short else shape


def _show_visit(progress: WorkProgress, before: int, done: float, said: str) -> None:
    progress.at(before + done, said)


def _show_load(show: Show, done: int, name: str, _passed_s: float, said: str) -> None:
    show(done, f"{name}, {said}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", action="append", choices=CONTENDERS, help="may be repeated")
    names = (BURST_LOAD, RETRY_LOAD, *FITTED)
    parser.add_argument("--load", action="append", choices=names, help="may be repeated")
    parser.add_argument("--itl", action="store_true", help="ITL while long prompts arrive, alone")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="loads in each round")
    parser.add_argument("--pairs", type=int, default=0, metavar="N", help="short, and no file")
    parser.add_argument("--short", action="store_true", help="22 s a load instead of 68")
    parser.add_argument("--rate", type=float, default=BurstShape().rate, help="in the calm")
    parser.add_argument("--burst-factor", type=float, default=BurstShape().factor)
    parser.add_argument(
        "--shrink", type=float, default=1.0, metavar="X", help="lengths are divided by X"
    )
    parser.add_argument(
        "--slow", type=float, default=1.0, metavar="X", help="times and budgets are X times as long"
    )
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    add_paths(parser)
    options = parser.parse_args()
    if min(options.shrink, options.slow) < 1:
        parser.error("--shrink divides by 1 or more, and --slow multiplies by as much")
    if options.itl and max(options.shrink, options.slow) > 1:
        parser.error("--itl is neither shrunk nor slowed")
    return options


if __name__ == "__main__":
    main()
