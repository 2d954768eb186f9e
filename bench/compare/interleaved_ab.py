"""Both of Tandem's modes in turn on one load, window by window.

`python -m bench.compare.interleaved_ab` plays them.

On a shared host ITL changes over an hour by more than two modes differ, and a play of a trace takes
minutes. Here both servers are up, and the idle server is frozen (SIGSTOP), so that it takes no
cores. The same window is played on both servers within two minutes. Every window begins without
requests, and has new prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.compare.interleaved_figures import PairedOutcome, as_series
from bench.core.figure_text import figures_table
from bench.core.host_info import describe_machine, now
from bench.core.prompts import count_tokens
from bench.core.results import Series, keep
from bench.load.arrivals import Arrival, Load
from bench.load.closed_loop import ServerTarget
from bench.load.open_loop import Rules
from bench.load.run_record import Sender
from bench.load.traces import FITTED
from bench.systems.cli_paths import add_paths, prepare
from bench.systems.contenders import (
    BURST_LOAD,
    CONTENDERS,
    POOLS,
    SINGLE,
    BurstShape,
    any_load,
    warm_load,
)
from bench.systems.server_process import freeze, running, thaw
from cluster.work_progress import tracked

_SYSTEMS = (POOLS, SINGLE)
_LEAD_S = 0.3
# The wait after a thaw, in which leases and links are renewed.
_SETTLE_S = 4.0
_DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a load, and the indices of its requests."""

    load: Load
    indices: tuple[int, ...]


def cut(load: Load, seconds: float) -> list[Window]:
    """The load in parts of so many seconds, each from its own beginning, without empty ones."""
    windows: dict[int, list[int]] = {}
    for index, arrival in enumerate(load.arrivals):
        windows.setdefault(int(arrival.at_s // seconds), []).append(index)
    return [
        Window(replace(load, arrivals=_from(load, number * seconds, indices)), tuple(indices))
        for number, indices in windows.items()
    ]


def _from(load: Load, begin_s: float, indices: Sequence[int]) -> tuple[Arrival, ...]:
    moved_s = _LEAD_S - begin_s
    return tuple(replace(load.arrivals[i], at_s=load.arrivals[i].at_s + moved_s) for i in indices)


def turns(rounds: int, windows: Sequence[Window]) -> Iterator[tuple[int, Window, str]]:
    """The order of plays: each window on both systems, which take turns in beginning."""
    count = 0
    for number in range(1, rounds + 1):
        for window in windows:
            for system in _SYSTEMS if count % 2 == 0 else reversed(_SYSTEMS):
                yield number, window, system
            count += 1


def main() -> None:
    """See the module."""
    options = _options()
    paths, shape = prepare(options), BurstShape(slow=options.slow)
    load = any_load(options.load, shape, options.seed, options.traces)
    outcomes: list[PairedOutcome] = []
    with ExitStack() as stack:
        servers: dict[str, tuple[int, ServerTarget]] = {}
        for system in _SYSTEMS:
            logs = paths.logs / system
            logs.mkdir(exist_ok=True)
            service = CONTENDERS[system].start(replace(paths, logs=logs), shape.tandem_config)
            pid = stack.enter_context(running(service.process, logs / "server.log"))
            stack.callback(thaw, pid)
            servers[system] = pid, service.target
        for system in _SYSTEMS:
            _play(servers, system, warm_load(1), shape)
        windows = cut(load, options.window)
        plays = [*turns(options.rounds, windows)]
        for count, (number, window, system) in enumerate(tracked("windows", plays), 1):
            seed = random.randrange(10**6)
            part = _play(servers, system, replace(window.load, seed=seed), shape)
            outcomes += [
                replace(one, round=number, index=window.indices[one.index]) for one in part
            ]
            within_goals = {
                name: sum(o.within_goals for o in outcomes if o.system == name) for name in _SYSTEMS
            }
            print(
                f"{now()} round {number}, from request {window.indices[0]}: {within_goals}",
                flush=True,
            )
            if count % len(_SYSTEMS) == 0:  # both systems have played the window
                series = _kept(options, load, outcomes)
    print(f"{load.title}\n\n{figures_table(series)}")


def _play(
    servers: dict[str, tuple[int, ServerTarget]], system: str, load: Load, shape: BurstShape
) -> list[PairedOutcome]:
    """Send the load to one system, while the other one is frozen."""
    for name, (pid, _) in servers.items():
        (thaw if name == system else freeze)(pid)
    time.sleep(_SETTLE_S)
    slow = shape.slow
    rules = Rules(_DEADLINE_S * slow, 0, longest_wait_s=Rules().longest_wait_s * slow)
    sender = Sender(rules, shape.budgets, count_tokens)
    server = servers[system][1]
    run = asyncio.run(sender.send(system, server, load, {}, None))
    return [
        PairedOutcome(
            *(0, system, one.index, run.budgets.kept_by(one), one.refused),
            one.ttft_s,
            one.mean_itl_s if one.complete else None,
        )
        for one in run.outcomes
    ]


def _kept(options: argparse.Namespace, load: Load, outcomes: Sequence[PairedOutcome]) -> Series:
    """The series so far, because a play of many windows may be interrupted."""
    machine = describe_machine()
    conditions: dict[str, str | int | float] = {
        "load": options.load,
        "about": load.title,
        "slow": options.slow,
        "seed": load.seed,
        "rounds": options.rounds,
        "window_s": options.window,
        "requests": len(outcomes),
    }
    name = options.load if options.slow == 1 else f"{options.load}, times x {options.slow:g}"
    series = as_series(name, outcomes, conditions, machine["commit"], machine["date"])
    keep(options.results, "interleaved", machine, [series])
    return series


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--load", choices=(*FITTED, BURST_LOAD), default="mooncake_conversation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--window",
        type=float,
        default=30.0,
        help="seconds of the load; a burst is to fall into one",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=float, default=1.0, metavar="X", help="as of bench.burst")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    add_paths(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
