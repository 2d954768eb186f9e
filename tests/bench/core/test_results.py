"""The format of kept results, and the files that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.core.results import RANGE, RESULTS, Series, figure, keep, read_results, value_of

KEPT = sorted((Path(__file__).parents[3] / RESULTS).iterdir())
MOST_BYTES = 400_000
ZEN_5 = {"processor": "AMD EPYC family 26 (avx2)", "cores": "2", "commit": "c", "date": "d"}


def _series(name, value=1.0, **conditions):
    figures = {"rate": value_of(value, "tokens/s", 3, "runs", (0.5, 2.0))}
    return Series(name=name, commit="c1", date="2026-01-02", conditions=conditions, figures=figures)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_kept_file_has_the_format_and_its_name(path):
    results = read_results(path)
    assert path.name == results.file_name
    names = [series.name for series in results.series]
    assert names and len(set(names)) == len(names)
    for series in results.series:
        assert series.commit and len(series.date) == len("2026-01-02")
        for one in series.figures.values():
            is_count = one.value == int(one.value)
            assert one.n > 0 and (one.unit or is_count) and one.of
            assert (one.low is None) == (one.high is None) == (not one.interval)


def test_kept_files_are_small():
    assert sum(path.stat().st_size for path in KEPT) < MOST_BYTES


def test_repeats_become_their_median_and_range():
    one = figure([3.0, 1.0, 2.0], "ms", "runs")
    assert (one.value, one.low, one.high, one.n, one.interval) == (2.0, 1.0, 3.0, 3, RANGE)
    assert figure([], "ms", "runs") is None
    alone = figure([3.0], "ms", "runs")
    assert alone.low is None and not alone.interval


def test_written_results_can_be_read_again(tmp_path):
    path = keep(tmp_path, "burst", ZEN_5, [_series("burst"), _series("slow", slow=2)])
    assert path.name == "burst-zen5.json"
    results = read_results(path)
    assert results.machine == {"processor": "AMD EPYC family 26 (avx2)", "cores": "2"}
    assert [series.slow for series in results.series] == [1.0, 2.0]
    assert results.find("burst") == _series("burst")
    assert results.find("other") is None


def test_a_run_replaces_the_series_of_its_name_alone(tmp_path):
    keep(tmp_path, "burst", ZEN_5, [_series("burst"), _series("slow")])
    path = keep(tmp_path, "burst", ZEN_5, [_series("burst", 1.5)])
    results = read_results(path)
    assert {s.name: s.figures["rate"].value for s in results.series} == {"slow": 1.0, "burst": 1.5}


@pytest.mark.parametrize(
    "change",
    [
        {"series": None},
        {"more": 1},
        {"machine": {"processor": 3}},
        {"series": [{"name": "burst"}]},
    ],
)
def test_what_breaks_the_format_is_an_error_that_names_the_file(tmp_path, change):
    path = keep(tmp_path, "burst", ZEN_5, [_series("burst")])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"burst-zen5.json holds no results"):
        read_results(path)
