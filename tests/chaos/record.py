"""What is kept of each run, so that many runs can be done in pieces, and the table over all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Self

from bench.core.results import Series, value_of
from bench.core.statistics import percentile
from tests.chaos.run import Outcome

FATES = (
    "exact", "tie", "unjournaled", "broken", "refused", "cancelled",
    "lost", "repeated", "wrong", "endless",
)  # fmt: skip
_SECONDS = ("pause p50", "pause p99", "pause worst", "run p50")
HEADER = ("runs", "delivered", "streams", "open", *FATES, "leaks", *_SECONDS)


@dataclass(frozen=True)
class Record:
    """A run. `moment` is the state that was reached, `pauses_s` are of streams that ended well."""

    number: int
    fault: str
    moment: str
    delivered: bool
    open: int
    fates: dict[str, int]
    front_ends: dict[str, int]
    pauses_s: list[float]
    leaked: bool
    bad: list[str]
    took_s: float
    commit: str

    @classmethod
    def of(cls, outcome: Outcome, commit: str) -> Self:
        """What is kept of a run at a commit."""
        streams = outcome.streams
        return cls(
            outcome.number,
            str(outcome.fault),
            outcome.moment if outcome.reached else "",
            outcome.delivered,
            outcome.open,
            dict(Counter(one.fate for one in streams)),
            dict(Counter(one.front_end for one in streams)),
            [round(one.longest_s, 3) for one in streams if one.fate in ("exact", "tie")],
            bool(outcome.leaked),
            outcome.bad,
            round(outcome.took_s, 2),
            commit,
        )

    def __str__(self) -> str:
        fates = ", ".join(f"{count} {fate}" for fate, count in self.fates.items())
        at = f" at {self.moment}" if self.moment else ""
        undelivered = "" if self.delivered else ", not delivered"
        longest_s = max(self.pauses_s, default=0.0)
        line = f"{self.number}: {self.fault}{at}{undelivered}: {fates}; pause {longest_s:.1f} s"
        return "\n".join([f"{line}, run {self.took_s:.1f} s", *(f"    {bad}" for bad in self.bad)])


class RunLog:
    """The records of one chaos in a file, a line each; without a file they are not kept."""

    def __init__(self, path: Path | None = None, *, anew: bool = False) -> None:
        self.records = list[Record]()
        self._path = path
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if anew:
            path.unlink(missing_ok=True)
        lines = path.read_text().splitlines() if path.is_file() else []
        self.records += [Record(**json.loads(line)) for line in lines]

    def missing(self, runs: int) -> list[int]:
        """The numbers of the runs below `runs` that were not done."""
        done = {one.number for one in self.records}
        return [number for number in range(runs) if number not in done]

    def add(self, record: Record) -> None:
        """Keep a run."""
        self.records.append(record)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(record)) + "\n")


def by_fault(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs of each fault, and at last of all."""
    found: dict[str, list[Record]] = {}
    for one in sorted(records, key=lambda one: one.fault):
        found.setdefault(one.fault, []).append(one)
    return found | {"all": list(records)}


def row(records: Sequence[Record]) -> dict[str, float]:
    """The figures of these runs, by the names in HEADER."""
    fates = Counter[str]()
    for one in records:
        fates.update(one.fates)
    pauses_s = [pause for one in records for pause in one.pauses_s] or [0.0]
    figures = [
        len(records),
        sum(one.delivered for one in records),
        fates.total(),
        sum(one.open for one in records),
        *(fates[fate] for fate in FATES),
        sum(one.leaked for one in records),
        median(pauses_s),
        percentile(pauses_s, 0.99),
        max(pauses_s),
        median(one.took_s for one in records),
    ]
    return dict(zip(HEADER, figures, strict=True))


def as_cells(figures: Mapping[str, float]) -> list[str]:
    """The figures as a row of a table."""
    return [f"{value:.2f}" if name in _SECONDS else f"{value:g}" for name, value in figures.items()]


def as_series(
    form: str, records: Sequence[Record], seed: int, machine: Mapping[str, str]
) -> list[Series]:
    """A row for each fault as figures. `form` is that of the cluster."""
    commits = ", ".join(dict.fromkeys(one.commit for one in records))
    return [
        Series(
            name=f"{form}, {fault}",
            commit=commits,
            date=machine["date"],
            conditions={"seed": seed},
            figures={
                name: value_of(value, "s" if name in _SECONDS else "", len(some), "runs")
                for name, value in row(some).items()
            },
        )
        for fault, some in by_fault(records).items()
    ]
