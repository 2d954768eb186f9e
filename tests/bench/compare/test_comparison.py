"""Ratios and tables from rounds."""

from __future__ import annotations

from dataclasses import replace

from bench.compare.comparison import RoundResult, against, as_markdown, as_series, best_peer

FOUND = [
    RoundResult("tandem", 1, {"decode 8": [90.0, 110.0, 100.0], "prefill": [30.0]}, None),
    RoundResult("vllm", 1, {"decode 8": [50.0], "prefill": [20.0]}, None),
    RoundResult("vllm-256", 1, {"decode 8": [80.0], "prefill": [10.0]}, None),
    RoundResult("tandem", 2, {"decode 8": [100.0], "prefill": [30.0]}, None),
    RoundResult("vllm", 2, {"decode 8": [40.0], "prefill": [15.0]}, None),
    RoundResult("vllm-256", 2, {}, "NotReady: no answer in 420 s"),
]


def test_ratios_pair_the_rounds():
    assert against(FOUND, "tandem", "vllm", "decode 8").values == (2.0, 2.5)
    assert against(FOUND, "tandem", "vllm-256", "decode 8").values == (1.25,)
    assert against(FOUND, "tandem", "llama", "decode 8") is None


def test_the_best_peer_is_found_for_each_column():
    assert best_peer(FOUND, "tandem", "decode 8") == "vllm-256"
    assert best_peer(FOUND, "tandem", "prefill") == "vllm"
    assert best_peer(FOUND, "tandem-in-process", "prefill") is None


def test_the_report_has_figures_ratios_and_failures():
    text = as_markdown(FOUND, {"cores": "2"})
    assert "100 [90 to 110]" in text
    assert "2.25 [2.00 to 2.50]" in text
    assert "- vllm-256, round 2: NotReady: no answer in 420 s" in text
    assert "1.25 (vllm-256)" in text


def test_rates_and_ratios_are_kept():
    found = [replace(each, at="2026-01-02 03:04", commit="c") for each in FOUND]
    series = as_series(found, {"rounds": 2})
    assert (series.commit, series.date) == ("c", "2026-01-02")
    ratio = series.figures["tandem over vllm: prefill"]
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == (1.75, 1.5, 2.0, 2)
    assert series.figures["tandem over the best peer: decode 8"].value == 1.25
    assert series.figures["tandem: decode 8"].n == 4
    assert "llama: prefill" not in series.figures
