"""Tables and ratios of the contenders' measurements, for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.compare.burst_measurement import Measured, pooled_values
from bench.compare.paired_requests import OneByOne, as_table, one_by_one
from bench.core.figure_text import when_measured
from bench.core.host_info import as_line
from bench.core.markdown_tables import table
from bench.core.statistics import Spread
from bench.load.arrivals import BURST, CALM, DRAIN
from bench.load.goodput import ALL, Quantiles
from bench.systems.contenders import CONTENDERS, LONG, PEERS, POOLS, SINGLE

ITL = "itl"
_COUNTS = ("requests", "within goals", "refused", "failed")
_PHASES = (CALM, BURST, DRAIN)
_TIMES = ("TTFT p50", "p99", "ITL p50", "p95", "mean")
_REST = (
    *(
        "stall p99",
        "drain s",
        "refusal p99",
        "retry time s",
        "returned",
        "then within goals",
        "client cores",
    ),
    "host took, cores",
)


def as_markdown(runs: Sequence[Measured], machine: dict[str, str]) -> str:
    """A section for each load, the failures, and the time and machine."""
    parts = []
    for load in loads(runs):
        there = [each for each in runs if each.load == load]
        seeds = ", ".join(str(seed) for seed in sorted({each.seed for each in there if each.seed}))
        about = " / ".join(dict.fromkeys(each.about for each in there if each.about))
        parts.append(f"**{load}**: {about}. Seeds {seeds}. Times in ms.")
        parts += _itl_section(there) if load == ITL else _load_section(there, load)
    errors = [
        f"- {each.system}, {each.load}, round {each.round}: {reason}"
        for each in runs
        for reason in filter(None, (each.error, *each.failures))
    ]
    parts.append("\n".join(["Failed:", *errors]) if errors else "")
    parts += [when_measured([(each.at, each.commit) for each in runs]), as_line(machine)]
    return "\n\n".join(part for part in parts if part) + "\n"


def loads(runs: Sequence[Measured]) -> list[str]:
    """The names of the loads, in their order."""
    return list(dict.fromkeys(each.load for each in runs))


def goodput_ratio(runs: Sequence[Measured], load: str, ours: str, other: str) -> Spread | None:
    """Requests within the budgets, ours over theirs, pairwise by round and seed, or None.

    Pairs in which theirs is 0 are left out.
    """
    mine, their = _within_goals(runs, load, ours), _within_goals(runs, load, other)
    both = sorted(key for key in mine.keys() & their.keys() if their[key])
    return Spread(tuple(mine[key] / their[key] for key in both)) if both else None


_PAIRS = tuple((POOLS, name) for name in (*PEERS, SINGLE)) + tuple((SINGLE, name) for name in PEERS)


def _load_section(runs: Sequence[Measured], load: str) -> list[str]:
    names = [name for name in CONTENDERS if _of(runs, name, load)]
    per_run = "requests of a run, median [range]"
    phases = _PHASES if any(each.counts.get(BURST) for each in runs) else ()
    timed = phases[:2] or (ALL,)
    times_of = [f"{one} {phase}" if phases else one for phase in timed for one in _TIMES]
    counts = [_counts_row(name, _of(runs, name, load), phases) for name in names]
    times = [_times_row(name, _of(runs, name, load), timed) for name in names]
    rest = [_rest_row(name, _of(runs, name, load)) for name in names]
    ratios = [
        [f"{ours} over {other}", spread.show(2)]
        for ours, other in _PAIRS
        if (spread := goodput_ratio(runs, load, ours, other))
    ]
    parts = [
        table([per_run, *_COUNTS[:2], *phases, *_COUNTS[2:]], counts),
        table(["all runs together", *times_of], times),
        table(["", *_REST], rest),
        *([as_table(one)] if (one := _against_single(runs, load)) else []),
    ]
    if ratios:
        parts.append(table(["goodput, run by run", "median [range]"], ratios))
    return parts


def _against_single(runs: Sequence[Measured], load: str) -> OneByOne | None:
    return one_by_one(_of(runs, POOLS, load), _of(runs, SINGLE, load))


def _itl_section(runs: Sequence[Measured]) -> list[str]:
    rows = []
    for name, contender in CONTENDERS.items():
        mine = _of(runs, name, ITL)
        if not mine:
            continue
        before, during = (Quantiles.of(pooled_values(mine, kind)) for kind in ("before", "during"))
        ttft = Quantiles.of(pooled_values(mine, "ttft"))
        cells = [before.p50, before.p95, during.p50, during.p95]
        over = _quotient(during.p95, before.p95)
        asked = sum(each.count("requests", LONG) for each in mine)
        served = asked - sum(each.count("failed", LONG) for each in mine)
        served_of, n = f"{served} of {asked}", str(before.count)
        rows.append([contender.title, *map(_ms, cells), over, _ms(ttft.p50), served_of, n])
    head = ["ITL of the running", "before p50", "p95", "during p50", "p95", "p95 over", "TTFT p50"]
    return [table([*head, "served", "n before"], rows)]


def _counts_row(name: str, runs: Sequence[Measured], phases: Sequence[str]) -> list[str]:
    def spread(what: str, phase: str = ALL) -> str:
        return Spread(tuple(float(each.count(what, phase)) for each in runs)).show()

    within_goals = [spread("within_goals", phase) for phase in (ALL, *phases)]
    cells = [spread("requests"), *within_goals, spread("refused"), spread("failed")]
    return [CONTENDERS[name].title, *cells]


def _times_row(name: str, runs: Sequence[Measured], phases: Sequence[str]) -> list[str]:
    cells = []
    for phase in phases:
        ttft, itl = (
            Quantiles.of(pooled_values(runs, f"{what} {phase}")) for what in ("ttft", "itl")
        )
        cells += [_ms(ttft.p50), _ms(ttft.p99)]
        cells += map(_tenths, (itl.p50, itl.p95, itl.mean))
    return [CONTENDERS[name].title, *cells]


def _rest_row(name: str, runs: Sequence[Measured]) -> list[str]:
    def of(value: str) -> Quantiles:
        return Quantiles.of(pooled_values(runs, value))

    returned = sum(each.count("requests", "returned") for each in runs)
    drain, named = (f"{one.p50:.1f}" if one.count else "" for one in (of("drain"), of("named")))
    cells = [_ms(of(f"stall {ALL}").p99), drain, _ms(of("refusal").p99), named]
    share = _share_returned(runs)
    cores = of("client_cores").p50
    cells += [str(returned), share, "" if cores is None else f"{cores:.2f}"]
    host = pooled_values(runs, "host_cores")
    cells.append(Spread(tuple(host)).show(2) if host else "")
    return [CONTENDERS[name].title, *cells]


def _share_returned(runs: Sequence[Measured]) -> str:
    returned = sum(each.count("requests", "returned") for each in runs)
    within_goals = sum(each.count("within_goals", "returned") for each in runs)
    return f"{within_goals / returned:.2f}" if returned else ""


def _of(runs: Sequence[Measured], system: str, load: str) -> list[Measured]:
    """The complete runs of a system."""
    return [each for each in runs if each.system == system and each.load == load and not each.error]


def _within_goals(runs: Sequence[Measured], load: str, system: str) -> dict[tuple[int, int], int]:
    return {(each.round, each.seed): each.count("within_goals") for each in _of(runs, system, load)}


def median_within_goals(runs: Sequence[Measured], load: str, system: str) -> float | None:
    """Requests of a run within their goals; None where the system was not measured."""
    within_goals = _within_goals(runs, load, system)
    return Spread(tuple(map(float, within_goals.values()))).median if within_goals else None


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.0f}"


def _tenths(seconds: float | None) -> str:
    """A short time in milliseconds, to a tenth."""
    return "" if seconds is None else f"{1000 * seconds:,.1f}"


def _quotient(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value is not None and other else ""
