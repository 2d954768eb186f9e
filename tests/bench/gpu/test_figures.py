"""Figures of a GPU that are kept."""

from __future__ import annotations

from bench.core.results import keep, read_results
from bench.gpu.figures import as_series, machine_of

HEAD = {
    "at": "2026-01-02T03:04:05Z",
    "python": "3.12",
    "torch": "2.11",
    "commit": None,
    "device": "NVIDIA H200",
    "read_gb_s": 4465.0,
    "copy_gb_s": 4258.0,
    "matrix_tflop_s": 809.0,
}
SECTIONS = {
    "decode": [{"batch": 8, "context": 1024, "replay_ms": 5.42, "of_bandwidth": 0.67}],
    "prefill": [
        {"prompt": 8192, "chunk": chunk, "ms": 200.0, "tokens_s": 41e3, "of_matrix_rate": 0.8}
        for chunk in (2048, 8192)
    ],
}


def test_rows_become_figures_of_the_device(tmp_path):
    path = keep(tmp_path, "gpu", machine_of(HEAD), [as_series(HEAD, SECTIONS)])
    assert path.name == "gpu-h200.json"
    [series] = read_results(path).series
    assert (series.commit, series.date) == ("unknown", "2026-01-02")
    assert series.figures["decode, batch 8 at 1,024 tokens: step"].value == 5.42
    assert series.figures["prefill, 8,192 tokens in chunks of 2,048: rate"].value == 41_000
    assert "prefill, 8,192 tokens: pass" in series.figures


def test_a_run_that_was_broken_off_keeps_what_it_has():
    assert list(as_series(HEAD, {}).figures) == [
        "limit: memory read",
        "limit: memory copy",
        "limit: matrix product",
    ]
