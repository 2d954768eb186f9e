"""Tables of the report: a row for each series, a column for each kind of machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.compare.claim_table import CLAIMS, RUN, cost_per_million
from bench.core.figure_text import origin, samples, with_interval
from bench.core.machine_kind import TITLES, title_of
from bench.core.markdown_tables import table
from bench.core.results import Figure, Results, Series
from bench.report.goals import Goal, GoalSource


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure, its series, and its kind of machine."""

    figure: Figure
    series: Series
    kind: str


Rows = dict[str, dict[str, Shown]]


def kinds_of(results: Sequence[Results]) -> list[str]:
    """The kinds with results: first those with a title, in the order of titles."""
    kinds = {each.kind for each in results}
    known = [kind for kind in TITLES if kind in kinds]
    return [*known, *sorted(kinds - set(known))]


def goal_table(goal: Goal, results: Sequence[Results]) -> str:
    """The table of a goal, with missed figures in bold; empty without figures."""
    rows = _goal_rows(goal, results)
    if not rows:
        return ""

    def cell(one: Shown) -> str:
        text = with_interval(one.figure)
        met = goal.is_met(one.figure.value, one.series.slow)
        return f"{text if met else f'**{text}**'}<br>{samples(one.figure)}<br>{origin(one.series)}"

    wanted = f"{goal.bound} {goal.limit:,g}"
    if goal.in_time:
        wanted += "; as many times that as the load's times are longer"
    return f"### {goal.title}\n\nWanted: {wanted}.\n\n{_by_kind('measured', rows, cell)}"


def details(benchmark: str, results: Sequence[Results], endings: tuple[str, ...] = ()) -> list[str]:
    """A table for each series of a benchmark, with all figures or those with these endings."""
    found = [each for each in results if each.benchmark == benchmark]
    names = dict.fromkeys(series.name for each in found for series in each.series)
    parts = []
    for name in names:
        rows: Rows = {}
        there = [(each.kind, series) for each in found if (series := each.find(name))]
        for kind, series in there:
            for title, figure in series.figures.items():
                if not endings or title.endswith(endings):
                    row = f"{title}, {figure.unit}"
                    rows.setdefault(row, {})[kind] = Shown(figure, series, kind)
        heading = "figure" if len(names) == 1 else name
        text = _by_kind(
            heading, rows, lambda one: f"{with_interval(one.figure)}, {samples(one.figure)}"
        )
        parts += [text, _origins(there)]
    return parts


def matrices(benchmark: str, results: Sequence[Results]) -> list[str]:
    """A table for each kind of machine, with a row for each series and a column for each figure."""
    parts = []
    for each in (one for one in results if one.benchmark == benchmark):
        units = {name: one.unit for s in each.series for name, one in s.figures.items()}
        names = list(units)
        titles = [f"{name}, {unit}" if unit else name for name, unit in units.items()]
        rows = [
            [series.name, *(_plain(series.figures.get(name)) for name in names)]
            for series in each.series
        ]
        there = dict.fromkeys((origin(one) + _conditions(one), each.kind) for one in each.series)
        told = [f"- {title_of(kind)}: {text}" for text, kind in there]
        parts += [table([title_of(each.kind), *titles], rows), "\n".join(told)]
    return parts


def _plain(one: Figure | None) -> str:
    if one is None:
        return ""
    return f"{one.value:,.2f}" if one.unit else f"{one.value:,g}"


def claims(results: Sequence[Results]) -> str:
    """The table of common claims about serving, with measured values."""
    found = [each for each in results if each.benchmark == "claims"]
    kinds = kinds_of(found)
    of = {each.kind: each.series[0] for each in found}
    rows = []
    for claim in CLAIMS:
        cells = []
        for kind in kinds:
            figure = of[kind].figures.get(claim.key)
            price = float(of[kind].conditions.get("dollars_per_hour", 0))
            cells.append(_claim_cell(figure, claim.unit, price))
        rows.append([claim.text, claim.claimed, *cells, claim.how, f"`{RUN.format(claim.key)}`"])
    head = ["claim", "claimed", *map(title_of, kinds), "how it is measured", "to run"]
    return table(head, rows) + "\n\n" + _origins([(kind, of[kind]) for kind in kinds])


def machines(results: Sequence[Results]) -> str:
    """The table of the kinds of machines."""
    about = {each.kind: each.machine for each in results}
    rows = [
        [title_of(kind), f"`{kind}`", ", ".join(f"{name} {value}" for name, value in told.items())]
        for kind in kinds_of(results)
        if (told := about[kind])
    ]
    return table(["kind of machine", "in file names", "what it is"], rows)


def _claim_cell(figure: Figure | None, unit: str, dollars_per_hour: float) -> str:
    if figure is None:
        return "not measured yet"
    text = f"{with_interval(figure)} {unit}, {samples(figure)}"
    if unit != "tokens/s":
        return text
    return f"{text}, ${cost_per_million(figure.value, dollars_per_hour):.3f} per million"


def _goal_rows(goal: Goal, results: Sequence[Results]) -> Rows:
    rows: Rows = {}
    for source in goal.sources:
        for each in results:
            if each.benchmark != source.benchmark:
                continue
            for series in each.series:
                figure = series.figures.get(source.figure)
                if figure is not None and _counts(source, series):
                    row = _label(source, series, each.benchmark)
                    rows.setdefault(row, {})[each.kind] = Shown(figure, series, each.kind)
    return dict(sorted(rows.items(), key=lambda row: _slowest(row[1])))


def _slowest(row: dict[str, Shown]) -> float:
    return max(one.series.slow for one in row.values())


def _counts(source: GoalSource, series: Series) -> bool:
    return not source.loads or series.conditions.get("load") in source.loads


def _label(source: GoalSource, series: Series, benchmark: str) -> str:
    names = [series.name] if source.loads or series.name != benchmark else []
    return ", ".join([*names, *([source.label] if source.label else [])]) or "usual"


def _by_kind(heading: str, rows: Rows, cell: Callable[[Shown], str]) -> str:
    there = {kind for row in rows.values() for kind in row}
    kinds = [kind for kind in TITLES if kind in there]
    kinds += sorted(there - set(kinds))
    lines = [
        [name, *(cell(row[kind]) if kind in row else "" for kind in kinds)]
        for name, row in rows.items()
    ]
    return table([heading, *map(title_of, kinds)], lines)


def _origins(there: Sequence[tuple[str, Series]]) -> str:
    told = [f"- {title_of(kind)}: {origin(series)}{_conditions(series)}" for kind, series in there]
    return "\n".join(told)


def _conditions(series: Series) -> str:
    about = series.conditions.get("about")
    told = [] if about is None else [str(about)]
    told += [
        f"{name} {value}"
        for name, value in series.conditions.items()
        if name not in ("load", "about", "slow")
    ]
    return f"; {'; '.join(told)}" if told else ""
