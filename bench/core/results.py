"""The files of results: one for each benchmark and kind of machine, in `bench/results/`.

`bench/README.md` describes the format. A file holds figures, never single requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.core.machine_kind import machine_kind

RESULTS = Path("bench/results")
RANGE, RESAMPLED = "range", "95 %"
_DIGITS = 6


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Figure(_Strict):
    """One figure of `n` samples; `of` names the kind of samples.

    `low` and `high` are its interval: the range of its repeats, or the bounds of 95 % of the
    medians of resampled values. A figure without repeats has no interval.
    """

    value: float
    unit: str
    n: int
    of: str
    low: float | None = None
    high: float | None = None
    interval: str = ""


class Series(_Strict):
    """Figures by name that were measured together under the same conditions.

    `name` tells the series of a file apart. `commit` and `date` (ISO) are those of the last run.
    A condition of a load is its `slow`: how many times as long all its times and budgets are.
    """

    name: str
    commit: str
    date: str
    conditions: dict[str, str | int | float]
    figures: dict[str, Figure]

    @property
    def slow(self) -> float:
        """The factor of all times and budgets."""
        return float(self.conditions.get("slow", 1))


class Results(_Strict):
    """The content of a file. `machine` has the processor, its cores, memory, and versions."""

    benchmark: str
    machine: dict[str, str]
    series: tuple[Series, ...]

    @property
    def kind(self) -> str:
        """The kind of machine of these results."""
        return machine_kind(self.machine["processor"])

    @property
    def file_name(self) -> str:
        """The name of the file in the folder of results."""
        return f"{self.benchmark}-{self.kind}.json"

    def find(self, name: str) -> Series | None:
        """The series of that name."""
        return next((each for each in self.series if each.name == name), None)

    def as_json(self) -> str:
        """The content as indented JSON, with one line for each figure."""
        data = self.model_dump(exclude_defaults=True)
        text = json.dumps(data, indent=1)
        return re.sub(r"\{[^{}]*\}", lambda leaf: " ".join(leaf[0].split()), text) + "\n"


def figure(values: Iterable[float], unit: str, of: str) -> Figure | None:
    """The median of repeats with their range; None without repeats."""
    found = list(values)
    return value_of(median(found), unit, len(found), of, found) if found else None


def value_of(
    value: float, unit: str, n: int, of: str, repeats: Sequence[float] = (), how: str = RANGE
) -> Figure:
    """A figure with a known value; `repeats` are single values, or the ends of its interval."""
    if len(repeats) < 2:
        return Figure(value=_rounded(value), unit=unit, n=n, of=of)
    low, high = _rounded(min(repeats)), _rounded(max(repeats))
    return Figure(value=_rounded(value), unit=unit, n=n, of=of, low=low, high=high, interval=how)


def only_measured(figures: Mapping[str, Figure | None]) -> dict[str, Figure]:
    """The figures that were measured."""
    return {name: each for name, each in figures.items() if each is not None}


def series_of(
    name: str,
    machine: Mapping[str, str],
    conditions: Mapping[str, str | int | float],
    figures: Mapping[str, Figure | None],
) -> Series:
    """The series of a run, of the figures that were measured; `machine` has its commit and date."""
    return Series(
        name=name,
        commit=machine["commit"],
        date=machine["date"],
        conditions=dict(conditions),
        figures=only_measured(figures),
    )


def read_results(path: Path) -> Results:
    """Read a file; raises a ValueError that names the file if it breaks the format."""
    try:
        data = json.loads(path.read_text())
        data["series"] = tuple(data["series"])
        return Results.model_validate(data)
    except (KeyError, TypeError, ValidationError) as error:
        raise ValueError(f"{path} holds no results: {error}") from error


def read_all(folder: Path) -> list[Results]:
    """All files of a folder, by name."""
    return [read_results(path) for path in sorted(folder.glob("*.json"))]


def keep(
    folder: Path, benchmark: str, machine: Mapping[str, str], series: Sequence[Series]
) -> Path:
    """Write the series of a machine. Series with other names in the file stay.

    `machine` is as `describe_machine` says it; its commit and date belong to the series.
    """
    about = {name: value for name, value in machine.items() if name not in ("commit", "date")}
    new = Results(benchmark=benchmark, machine=about, series=tuple(series))
    path = folder / new.file_name
    if path.is_file():
        names = {each.name for each in series}
        others = [each for each in read_results(path).series if each.name not in names]
        new = new.model_copy(update={"series": (*others, *series)})
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(new.as_json())
    return path


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
