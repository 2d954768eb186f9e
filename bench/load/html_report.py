"""A run or a sweep as one self-contained page of HTML, with tables and plots. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.core.host_info import as_line
from bench.core.svg import COLOURS, Mark, Plot
from bench.load.goodput import LoadFigures, PhaseFigures, Quantiles, in_flight
from bench.load.metrics_poller import panels
from bench.load.request_outcome import Outcome
from bench.load.run_record import LoadRun

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1a1a1a;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}
svg{width:100%;height:auto;margin:.6rem 0;font:11px system-ui,sans-serif}
svg .title{font-weight:600;font-size:13px}
svg .grid{stroke:#e4e4e4}svg .limit{stroke:#888;stroke-dasharray:5 4}
.small{color:#555;font-size:13px}.scroll{overflow-x:auto}
"""
_BLUE, _RED, _GREEN = COLOURS[0], COLOURS[1], COLOURS[2]
_PHASES = ("", "requests", "within goals", "late", "refused", "failed")
_TIMES = (
    ("TTFT", "ttft"),
    ("TTFMT", "ttfmt"),
    ("mean ITL of a request", "mean_itl"),
    ("ITL of a token", "itl"),
    ("longest stall", "stall"),
    ("TTLT", "ttlt"),
)


def run_page(run: LoadRun) -> str:
    """The page of one run: its load, counts and percentiles by phase, and plots over time."""
    found = run.figures()
    parts = [
        f"<p>{escape(run.load.title)}; seed {run.load.seed}. {_budgets(run)}</p>",
        f"<p>{escape(' '.join(summary_lines(run)))}</p>",
        html_table(_PHASES, [_counts(name, phase) for name, phase in found.phases.items()]),
        *(
            f"<h2>{escape(name)}</h2>" + html_table(("ms", "n", "p50", "p95", "p99"), _rows(phase))
            for name, phase in found.phases.items()
        ),
        "<h2>Over time</h2>",
        *(plot.svg() for plot in plots(run)),
        f'<p class="small">{escape(as_line(run.machine))}</p>',
    ]
    return page(f"Load on {run.system}", parts)


def page(title: str, parts: Sequence[str]) -> str:
    """A whole document around some parts."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head>{head}{view}</head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in a box that scrolls sideways."""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in header)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table>{body}</table></div>'


def plots(run: LoadRun) -> list[Plot]:
    """Plots of TTFT, ITL and stalls by arrival, of requests in flight, and of server gauges."""
    first = [one for one in run.outcomes if one.number == 0]
    within_goals = [one for one in first if run.budgets.kept_by(one)]
    others = [one for one in first if one.complete and not run.budgets.kept_by(one)]
    refused = [(one.due_s, 0.0) for one in first if one.refused]
    failed = [(one.due_s, 0.0) for one in first if not (one.complete or one.refused)]
    ttft = [
        Mark("within goals", _over_time(within_goals, "ttft_s", 1), "dots", _BLUE),
        Mark("late", _over_time(others, "ttft_s", 1), "dots", _RED),
        Mark("refused", refused, "crosses", _GREEN),
        Mark("failed", failed, "crosses", COLOURS[6]),
    ]
    whole = within_goals + others
    itl = [
        Mark("mean ITL", _over_time(whole, "mean_itl_s", 1000), "dots", _BLUE),
        Mark("longest stall", _over_time(whole, "stall_s", 1000), "crosses", _RED),
    ]
    limits = [run.budgets.itl_s * 1000, run.budgets.stall_s * 1000]
    width = max([run.load.seconds, *(one.ended_s for one in run.outcomes)])

    def over(title: str, marks: Sequence[Mark], limits: Sequence[float] = ()) -> Plot:
        return Plot(title, "seconds", marks, run.shaded(), limits, width)

    found = [
        over("TTFT by arrival, s", ttft, [run.budgets.ttft_s]),
        over("ITL by arrival, ms", itl, limits),
        over("Requests in flight", [Mark("", in_flight(run.outcomes), "steps", _BLUE)]),
    ]
    for title, lines in panels(run.watched).items():
        marks = [
            Mark(name, [point for point in points if point[0] >= 0], "line", colour)
            for (name, points), colour in zip(lines.items(), COLOURS, strict=False)
        ]
        found.append(over(f"The server: {title}", marks))
    return found


def summary_lines(run: LoadRun) -> list[str]:
    """Goodput, drain, refusals and the cost of the client, one sentence each."""
    late_ms = milliseconds(run.figures().client_late.p99)
    client = f"The client was late by {late_ms} ms at p99 and took {run.client_cores:.2f} cores."
    errors = list(dict.fromkeys(one.error[:200] for one in run.outcomes if one.error))
    failed = [f"Failed, among others: {reason}." for reason in errors[:1]]
    return [*figure_lines(run.figures()), *failed, client]


def figure_lines(figures: LoadFigures) -> list[str]:
    """Goodput, drain and refusals."""
    whole = figures.phases["all"]
    lines = [
        f"{whole.within_goals} of {whole.requests} within the budgets,"
        f" {figures.goodput_per_s:.2f}/s; {figures.tokens_per_s:,.0f} tokens/s."
    ]
    if figures.drain_s is not None:
        lines.append(f"Drained {figures.drain_s:.1f} s after the burst.")
    refusals = figures.refusals
    if refusals.count:
        lines.append(
            f"{refusals.count} refusals, answered in {milliseconds(refusals.answer.p50)} ms"
            f" (p99 {milliseconds(refusals.answer.p99)}: decided in"
            f" {milliseconds(refusals.decided.p99)}, told in {milliseconds(refusals.told.p99)})."
        )
    if refusals.returned:
        lines.append(
            f"{refusals.returned} of the refused came back,"
            f" {refusals.then_answered} were answered then, {refusals.then_within_goals} in budget."
        )
    return lines


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds for a cell; a dash for None."""
    return "-" if seconds is None else f"{1000 * seconds:,.0f}"


def _budgets(run: LoadRun) -> str:
    budgets = run.budgets
    return (
        "A request is within its goals if its TTFT from the scheduled arrival is at most"
        f" {milliseconds(budgets.ttft_s)} ms,"
        f" its mean ITL at most {milliseconds(budgets.itl_s)} ms,"
        f" and no stall over {milliseconds(budgets.stall_s)} ms."
    )


def _counts(name: str, phase: PhaseFigures) -> list[str]:
    counts = (phase.requests, phase.within_goals, phase.late, phase.refused, phase.failed)
    return [name, *map(str, counts)]


def _rows(phase: PhaseFigures) -> list[list[str]]:
    return [[title, *_cells(getattr(phase, field))] for title, field in _TIMES]


def _cells(quantiles: Quantiles) -> list[str]:
    shares = (quantiles.p50, quantiles.p95, quantiles.p99)
    return [str(quantiles.count), *map(milliseconds, shares)]


def _over_time(outcomes: Sequence[Outcome], field: str, unit: float) -> list[tuple[float, float]]:
    pairs = ((one.due_s, getattr(one, field)) for one in outcomes)
    return [(due, value * unit) for due, value in pairs if value is not None]
