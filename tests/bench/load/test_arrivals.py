"""Loads drawn up front, and read from traces."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.load.arrivals import BURST, CALM, DRAIN, Lengths, Load, LoadPhase, burst_phases, poisson
from bench.load.traces import FITTED, TraceScale, load_trace, read_rows

_HEADER = "arrival_s,prompt_tokens,output_tokens,prefix_blocks\n"


def _phases(rate=4.0, factor=10.0):
    return burst_phases(rate, factor, before_s=20, burst_s=5, drain_s=10, after_s=15)


def _draw(seed, phases=None):
    return poisson(phases or _phases(), Lengths(), seed, "test")


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0.1, 20), st.floats(1, 20))
def test_arrivals_are_in_order_and_within_their_phases(seed, rate, factor):
    load = _draw(seed, _phases(rate, factor))
    times = [arrival.at_s for arrival in load.arrivals]
    assert times == sorted(times)
    for arrival in load.arrivals:
        spans = [(low, high) for name, low, high in load.spans if name == arrival.phase]
        assert any(low <= arrival.at_s < high for low, high in spans)
        assert 64 <= arrival.prompt_tokens <= 1024
        assert arrival.new_tokens == 32


def test_the_seed_alone_decides():
    assert _draw(3) == _draw(3)
    assert _draw(3).arrivals != _draw(4).arrivals


def test_rates_are_as_asked():
    load = _draw(0, (LoadPhase("a", 1000, 2.0), LoadPhase("b", 100, 20.0), LoadPhase("c", 50, 0.0)))
    counts = {name: sum(one.phase == name for one in load.arrivals) for name in "abc"}
    assert counts["a"] == pytest.approx(2000, rel=0.1)
    assert counts["b"] == pytest.approx(2000, rel=0.1)
    assert counts["c"] == 0


def test_the_burst_lies_between_calms():
    load = _draw(0)
    assert [name for name, _, _ in load.spans] == [CALM, BURST, DRAIN, CALM]
    assert load.span(BURST) == (20, 25)
    assert load.span("other") is None
    assert load.seconds == 50


def test_prompts_have_their_length_and_share_no_prefix():
    load = _draw(1)
    prompts = [load.prompt(index, 1000) for index in range(len(load.arrivals))]
    for arrival, prompt in zip(load.arrivals, prompts, strict=True):
        assert len(prompt) == arrival.prompt_tokens
    assert len({tuple(prompt[:8]) for prompt in prompts}) == len(prompts)
    assert prompts != [_draw(2).prompt(index, 1000) for index in range(len(_draw(2).arrivals))]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "made.csv.gz"
    rows = ["0,1024,100,0;1", "3,1100,80,0;1;2", "3,600,40,3;4", "9,50000,4000,5", "40,512,10,6"]
    path.write_bytes(gzip.compress((_HEADER + "\n".join(rows) + "\n").encode()))
    return path


def test_a_trace_is_cut_and_scaled(trace):
    scale = TraceScale(start_s=3, seconds=5, speed=2, shrink=4, most_tokens=2048, block_tokens=512)
    load = load_trace(trace, scale, 0)
    assert [one.at_s for one in load.arrivals] == [0, 0, 3]
    assert [one.prompt_tokens for one in load.arrivals] == [275, 150, 2048]
    assert [one.new_tokens for one in load.arrivals] == [20, 10, 1000]
    assert load.block_tokens == 128
    assert "made from 3 to 13 s, at 2 times its speed, lengths divided by 4" in load.title


def test_equal_blocks_are_equal_prefixes(trace):
    load = load_trace(trace, TraceScale(seconds=5, shrink=4, block_tokens=512), 0)
    first, second, third = (load.prompt(index, 1000) for index in range(3))
    assert len(first) == 256
    assert second[:256] == first
    assert third[:8] != first[:8]
    assert len(third) == 150


def test_a_share_of_a_trace_is_thinner_and_spread_over_its_grid(tmp_path):
    path = tmp_path / "grid.csv"
    lines = (f"{3 * (row // 100)},100,10,\n" for row in range(2000))
    path.write_text(_HEADER + "".join(lines))
    load = load_trace(path, TraceScale(seconds=60, share=0.25, spread_s=3), 0)
    assert len(load.arrivals) == pytest.approx(500, rel=0.15)
    times = [one.at_s for one in load.arrivals]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    assert load == load_trace(path, TraceScale(seconds=60, share=0.25, spread_s=3), 0)


def test_a_wrong_line_is_named(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(_HEADER + "0,1,1,\n1,many,1,\n")
    with pytest.raises(ValueError, match="line 3"):
        list(read_rows(path))


@pytest.mark.parametrize("wrong", [{"speed": 0}, {"share": 2}, {"start_s": -1}, {"shrink": -4}])
def test_a_scale_must_make_sense(wrong):
    with pytest.raises(ValueError, match="scale"):
        TraceScale(**wrong)


def test_every_fitted_scale_says_what_it_is():
    assert all("times its speed" in scale.words() for scale in FITTED.values())


def test_a_load_is_a_value():
    assert isinstance(_draw(0), Load)
    with pytest.raises(ValueError, match="phase"):
        LoadPhase("x", 0, 1)
    with pytest.raises(ValueError, match="lengths"):
        Lengths(5, 4)
