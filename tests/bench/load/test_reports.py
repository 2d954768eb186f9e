"""Plots, pages, gauges and the knee."""

from __future__ import annotations

import json
import re
from xml.dom.minidom import parseString

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.core.svg import Mark, Plot, ticks
from bench.load.arrivals import BURST, CALM, Lengths, burst_phases, poisson
from bench.load.goodput import Budgets, figures
from bench.load.html_report import html_table, run_page
from bench.load.metrics_poller import MetricsPoller, gauges, panels
from bench.load.request_outcome import Outcome
from bench.load.run_record import LoadRun
from bench.load.sweep import Curve, Step, knee, knee_line, sweep_data, sweep_page

_LOAD = poisson(
    burst_phases(1, 5, before_s=5, burst_s=2, drain_s=3, after_s=0), Lengths(), 0, "a <load>"
)


def _answered(due, ttft=0.5, tokens=4, phase=CALM):
    messages = tuple((due + ttft + 0.02 * position, 1) for position in range(tokens))
    end = messages[-1][0]
    return Outcome(0, 0, phase, due, due, end, 9, tokens, 200, tokens, messages)


@settings(deadline=None)
@given(st.floats(1e-6, 1e9))
def test_ticks_cover_the_top_with_few_round_numbers(top):
    found = ticks(top)
    assert found[0] == 0
    assert found[-1] >= top * 0.998
    assert 2 <= len(found) <= 12
    assert found[-1] < 3 * top


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), max_size=20),
    st.sampled_from(["line", "steps", "dots", "crosses"]),
)
@example([(5e-324, 5e-324)], "line")
def test_every_plot_is_well_formed_and_stays_inside(points, kind):
    plot = Plot("<t> & more", "x", [Mark("a", points, kind)], [(1, 2)], [5.0])
    root = parseString(plot.svg()).documentElement
    for dot in root.getElementsByTagName("circle"):
        assert 55 <= float(dot.getAttribute("cx")) <= 749
        assert 25 <= float(dot.getAttribute("cy")) <= 187


def test_a_page_stands_alone_and_shows_the_burst():
    refused = Outcome(3, 0, BURST, 6, 6, 6.01, 9, 4, 429, retry_after_s=2.0)
    outcomes = (_answered(1), _answered(5.5, 3.0, phase=BURST), refused)
    watched = {"waiting: prefill": [(-1.0, 5.0), (1.0, 2.0)], "waiting: decode": [(1.0, 0.0)]}
    page = run_page(LoadRun("server", _LOAD, Budgets(), outcomes, watched, {"cores": "2"}))
    assert "a &lt;load&gt;" in page
    assert not re.findall(r"(src|href)=", page)
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 4
    assert all("<rect" in svg for svg in drawn)
    for svg in drawn:
        parseString(svg)
    assert "The server: waiting" in drawn[3]
    assert "<td>burst</td><td>2</td><td>0</td><td>1</td><td>1</td><td>0</td>" in page


def test_a_run_is_whole_as_data():
    run = LoadRun("server", _LOAD, Budgets(), (_answered(1),), {}, {})
    data = run.as_data()
    assert data["figures"]["phases"]["all"]["within_goals"] == 1
    assert len(data["requests"]) == 1


def test_cells_are_escaped():
    assert "<td>&lt;b&gt;</td>" in html_table(["x"], [["<b>"]])


_TANDEM = """# TYPE ray_tandem_replica_waiting_requests gauge
ray_tandem_replica_waiting_requests{role="prefill",replica="a"} 3.0
ray_tandem_replica_waiting_requests{role="prefill",replica="b"} 4.0
ray_tandem_replica_waiting_requests{role="decode",replica="c"} 1.0
# TYPE tandem_kv_blocks gauge
tandem_kv_blocks{role="decode",replica="c",state="free"} 60.0
tandem_kv_blocks{role="decode",replica="c",state="cached"} 20.0
tandem_kv_blocks{role="decode",replica="c",state="used"} 20.0
tandem_kv_blocks{role="decode",replica="c",state="leased"} 10.0
# TYPE other gauge
other 7.0
"""
_VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 8.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""


def test_gauges_of_both_kinds_of_server_are_read():
    assert gauges(_TANDEM) == {
        "waiting: prefill": 7.0,
        "waiting: decode": 1.0,
        "KV in use, share: decode": 0.2,
    }
    assert gauges(_TANDEM, ["other"])["other"] == 7.0
    assert gauges(_VLLM) == {"running": 8.0, "waiting": 2.0, "KV in use, share": 0.25}


def test_polls_become_series_and_series_panels():
    watch = MetricsPoller([], texts=[(10.0, _TANDEM), (10.5, _TANDEM)])
    series = watch.series(10.0)
    assert series["waiting: prefill"] == [(0.0, 7.0), (0.5, 7.0)]
    grouped = panels(series)
    assert list(grouped["waiting"]) == ["waiting: decode", "waiting: prefill"]
    assert list(grouped) == ["KV in use, share", "waiting"]


def _step(rate, answered, ttft):
    outcomes = [_answered(due, ttft) for due in range(answered)]
    return Step(rate, figures(_LOAD, outcomes, Budgets()))


def test_the_knee_is_where_throughput_over_latency_is_greatest():
    steps = [_step(1, 4, 0.4), _step(2, 8, 0.5), _step(3, 10, 2.0), _step(9, 10, 8.0)]
    assert knee(steps).rate == 2
    assert "knee is at 2 requests/s" in knee_line(steps)
    assert "may lie beyond" not in knee_line(steps)
    assert "may lie beyond" in knee_line(steps[:2])
    assert sweep_data("server", steps, {})["knee"] == 2
    page = sweep_page("a <server>", "title", steps, {})
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 2
    # The curve has a point for each rate, and the knee is a dot on that of the median.
    root = parseString(drawn[0]).documentElement
    median = root.getElementsByTagName("path")[0].getAttribute("d")
    corners = re.findall(r"[ML]([\d.]+) ([\d.]+)", median)
    assert len(corners) == len(steps)
    (dot,) = root.getElementsByTagName("circle")
    assert (dot.getAttribute("cx"), dot.getAttribute("cy")) == corners[1]
    assert "a &lt;server&gt;" in page


def test_sweeps_are_laid_beside_each_other():
    steps = [_step(1, 4, 0.4), _step(2, 8, 0.5), _step(3, 10, 2.0)]
    early = sweep_data("static <1>", [_step(1, 4, 0.9), _step(2, 8, 4.0)], {})
    other = Curve.read(json.loads(json.dumps(early)))
    none = Curve.read(sweep_data("silent", [_step(1, 0, 1)], {}))
    page = sweep_page("continuous", "title", steps, {}, [other, none])
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 3
    root = parseString(drawn[1]).documentElement
    assert len(root.getElementsByTagName("circle")) == 2
    assert "static &lt;1&gt;" in drawn[1]
    assert "<td>continuous</td><td>2</td>" in page
    assert "<td>static &lt;1&gt;</td><td>1</td>" in page
    assert "<td>silent</td><td>-</td>" in page


@pytest.mark.parametrize("data", [{}, [], {"steps": [{}], "name": "x", "knee": 1}, None])
def test_a_file_without_a_sweep_is_refused(data):
    with pytest.raises(ValueError, match="no sweep"):
        Curve.read(data)


def test_without_answers_there_is_no_knee():
    assert knee([_step(1, 0, 1)]) is None
    assert knee_line([]) == "Nothing was answered."


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0.1, 9)), min_size=1, max_size=6))
def test_no_step_has_more_power_than_the_knee(made):
    steps = [_step(rate, answered, ttft) for rate, (answered, ttft) in enumerate(made, 1)]
    assert knee(steps).power == pytest.approx(max(step.power for step in steps))
