"""Runs put side by side."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from bench.compare.burst_measurement import (
    Measured,
    failures,
    itls_between,
    of_each,
    of_error,
    of_itl,
    of_load,
)
from bench.compare.burst_report import ITL, as_markdown, goodput_ratio
from bench.load.arrivals import BURST, CALM, DRAIN
from bench.load.goodput import ALL, Budgets
from bench.load.request_outcome import Outcome
from bench.load.run_record import LoadRun
from bench.systems.contenders import (
    BURST_LOAD,
    LONG,
    POOLS,
    RUNNING,
    SINGLE,
    VLLM,
    BurstShape,
    any_load,
    burst_load,
    itl_load,
    warm_load,
)


def _measured(system, number, seed, within_goals, in_burst=0, ttft=0.5, **values):
    counts = {
        ALL: {"requests": 120, "within_goals": within_goals, "refused": 3, "failed": 0},
        CALM: {"requests": 58, "within_goals": within_goals - in_burst},
        BURST: {"requests": 54, "within_goals": in_burst},
        DRAIN: {"requests": 8, "within_goals": 0},
        "returned": {"requests": 4, "answered": 4, "within_goals": 3},
    }
    times = {f"ttft {CALM}": [0.5], f"ttft {BURST}": [ttft], "drain": [2.5], **values}
    return Measured(
        system, number, "burst", seed, counts, times, about="a load", at="t", commit="c"
    )


FOUND = [
    _measured(VLLM, 1, 1, 60),
    _measured(SINGLE, 1, 1, 70, 12),
    _measured(POOLS, 1, 1, 90, 30, 0.9),
    _measured(VLLM, 1, 2, 50),
    _measured(SINGLE, 1, 2, 84, 14),
    _measured(POOLS, 1, 2, 84, 20, 1.1),
    Measured(VLLM, 2, "burst", 0, error="NotReady: no answer"),
    Measured(SINGLE, 2, "burst", 1, failures=["no end within 90 s"]),
    _measured(POOLS, 2, 1, 100),
]


def test_ratios_pair_rounds_and_seeds():
    assert goodput_ratio(FOUND, "burst", POOLS, VLLM).values == (1.5, 1.68)
    assert goodput_ratio(FOUND, "burst", POOLS, SINGLE).values == (90 / 70, 1.0)
    assert goodput_ratio(FOUND, "other", POOLS, VLLM) is None


def test_there_is_no_ratio_to_nothing():
    found = [_measured(VLLM, 1, 1, 0), _measured(POOLS, 1, 1, 9)]
    assert goodput_ratio(found, "burst", POOLS, VLLM) is None


def test_the_report_names_all_and_what_failed():
    text = as_markdown(FOUND, {"cores": "2"})
    assert "**burst**: a load. Seeds 1, 2." in text
    assert "- vllm, burst, round 2: NotReady: no answer" in text
    assert "- single, burst, round 2: no end within 90 s" in text
    assert "| Tandem, 1 + 1 replicas | 120 [120 to 120] | 90 [84 to 100] |" in text


def test_itl_are_printed_to_a_tenth_with_their_mean():
    itls = {f"itl {CALM}": [0.01], f"itl {BURST}": [0.02, 0.03, 0.0612]}
    text = as_markdown([_measured(POOLS, 1, 1, 84, 20, 1.1, **itls)], {})
    assert "| 500 | 500 | 10.0 | 10.0 | 10.0 | 1,100 | 1,100 | 30.0 | 58.1 | 37.1 |" in text


def test_a_load_without_a_burst_has_no_phases():
    counts = {ALL: {"requests": 9, "within_goals": 7, "refused": 1, "failed": 1}}
    values = {f"ttft {ALL}": [0.2], f"itl {ALL}": [0.0123]}
    text = as_markdown([Measured(POOLS, 1, "a trace", 1, counts, values)], {})
    assert "requests | within goals | refused | failed |" in text
    assert "| Tandem, 1 + 1 replicas | 9 | 7 | 1 | 1 |" in text
    assert "| Tandem, 1 + 1 replicas | 200 | 200 | 12.3 | 12.3 | 12.3 |" in text


def test_the_cores_taken_by_the_host_stand_beside_the_figures():
    run, disturbed, quiet = (
        _measured(POOLS, 1, seed, 84, 20, 1.1, **{f"ttft {ALL}": [1.1]}, **host)
        for seed, host in enumerate(({}, {"host_cores": [0.62]}, {"host_cores": [0.02]}))
    )
    assert disturbed.line().endswith("TTFT p99 1,100 ms; the host took 0.62 cores")
    assert "the host took" not in quiet.line()
    rows = as_markdown([disturbed, quiet], {}).splitlines()
    head = next(number for number, row in enumerate(rows) if "host took, cores" in row)
    assert rows[head + 2].endswith("| 0.32 [0.02 to 0.62] |")
    # Records of before have no such figure, and no zero stands for it.
    assert as_markdown([run], {}).splitlines()[head + 2].endswith("|  |")


def test_requests_stand_in_the_order_of_the_load():
    load = burst_load(BurstShape(), 1)
    outcomes = (
        replace(_stream(CALM, 2, [2.5]), index=2),
        replace(_stream(CALM, 1, [1.5, 1.52]), index=0),
        Outcome(1, 0, CALM, 1, 1, 1.01, 9, 2, 429, retry_after_s=1.0),
        Outcome(1, 1, CALM, 2.01, 2.01, 3, 9, 1, 200, 1, ((2.9, 1),)),
        # Two tokens of nine, and a mean that is told to the hundredth of a millisecond.
        Outcome(3, 0, CALM, 3, 3, 4, 9, 9, 200, 2, ((3.5, 1), (3.6, 1))),
        replace(_stream(CALM, 4, [4.5, 4.51234]), index=4),
    )
    within_goals, itls = of_each(LoadRun("x", load, Budgets(), outcomes, {}, {}))
    assert within_goals == [True, False, True, False, True]
    assert itls == [0.02, None, None, None, 0.01234]


def test_a_record_survives_its_file():
    of_each = replace(FOUND[0], each_itl=[0.01, None], each_within_goals=[True, False])
    for each in [*FOUND, of_each]:
        assert Measured(**json.loads(each.as_json())) == each


def test_loads_have_their_documented_shapes():
    load = burst_load(BurstShape(), 1)
    counts = [sum(one.phase == name for one in load.arrivals) for name in (CALM, BURST, DRAIN)]
    assert counts[0] == pytest.approx(55, abs=25)
    assert counts[1] == pytest.approx(55, abs=25)
    assert load.seconds == 68
    assert burst_load(BurstShape().short(), 1).seconds == 22
    assert {arrival.new_tokens for arrival in load.arrivals} == {32}
    warm = [warm_load(1).prompt(index, 99) for index in range(3)]
    assert warm != [warm_load(2).prompt(index, 99) for index in range(3)]


def test_lengths_for_a_slower_machine():
    whole, shrunk = burst_load(BurstShape(), 1), burst_load(BurstShape(shrink=4), 1)
    assert shrunk.title == f"{whole.title}, lengths divided by 4"
    for long, short in zip(whole.arrivals, shrunk.arrivals, strict=True):
        assert short.at_s == long.at_s
        assert short.prompt_tokens == round(long.prompt_tokens / 4)
        assert short.new_tokens == 8
    with pytest.raises(ValueError, match="1 or more"):
        BurstShape(shrink=0.5)


def test_a_load_for_a_slower_machine_has_the_same_requests_later():
    usual, slowed = burst_load(BurstShape(), 1), burst_load(BurstShape(slow=4), 1)
    assert slowed.title.endswith("all times and budgets 4 times as long")
    assert slowed.seconds == 4 * usual.seconds
    for soon, late in zip(usual.arrivals, slowed.arrivals, strict=True):
        assert late.at_s == pytest.approx(4 * soon.at_s)
        assert replace(late, at_s=soon.at_s) == soon
    assert BurstShape(slow=4).budgets == Budgets(4.0, 0.24, 1.0)
    with pytest.raises(ValueError, match="1 or more"):
        BurstShape(slow=0.5)


def test_a_trace_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match="azure"):
        any_load("azure2023_conv", BurstShape(), 1, tmp_path)
    assert any_load(BURST_LOAD, BurstShape(), 1, tmp_path) == burst_load(BurstShape(), 1)


def test_seeds_take_stretches_of_a_trace_one_after_another(tmp_path):
    rows = "".join(f"{at_s},400,40,\n" for at_s in range(600, 700))
    text = "arrival_s,prompt_tokens,output_tokens,prefix_blocks\n" + rows
    (tmp_path / "azure2023_conv.csv.gz").write_bytes(gzip.compress(text.encode()))
    first, second = (any_load("azure2023_conv", BurstShape(), seed, tmp_path) for seed in (1, 2))
    assert "from 600 to 630 s" in first.title
    assert "from 630 to 660 s" in second.title
    assert len(first.arrivals) == len(second.arrivals) == 30
    shrunk = any_load("azure2023_conv", BurstShape(shrink=5), 1, tmp_path)
    assert "lengths divided by 20, at most 205 tokens" in shrunk.title
    assert shrunk.arrivals[0].prompt_tokens == 20
    slowed = any_load("azure2023_conv", BurstShape(slow=2), 2, tmp_path)
    assert "from 630 to 660 s, at 0.25 times its speed" in slowed.title
    assert [one.at_s for one in slowed.arrivals[:2]] == [0, 4]


def _stream(phase, asked, times, status=200):
    messages = tuple((moment, 1) for moment in times)
    end = times[-1] if times else asked
    return Outcome(0, 0, phase, asked, asked, end, 9, len(times), status, len(times), messages)


def test_itl_before_and_during_the_long_prompts():
    run_times = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 5.5]
    outcomes = (
        _stream(RUNNING, 0, run_times),
        _stream(LONG, 3.1, [4.2]),
        _stream(LONG, 3.1, [5.0]),
    )
    run = LoadRun("x", itl_load(1), Budgets(), outcomes, {}, {})
    counts, values = of_itl(run)
    assert values["before"] == [0.5] * 4
    assert values["during"] == [1.0, 1.0]
    assert values["ttft"] == pytest.approx([1.1, 1.9])
    assert counts == {name: {"requests": n, "failed": 0} for name, n in ((RUNNING, 1), (LONG, 2))}
    found = Measured("vllm", 1, ITL, 1, counts, values, about="itl")
    assert found.line() == "ITL p95 500 ms before, 1,000 ms during"
    row = "| 500 | 500 | 1,000 | 1,000 | 2.00 | 1,500 | 2 of 2 | 4 |"
    assert row in as_markdown([found], {})


def test_long_prompts_that_were_refused_are_not_counted_as_served():
    refused = _stream(LONG, 3.1, [], status=429)
    outcomes = (_stream(RUNNING, 0, [0.5, 1.5, 2.5, 3.5]), _stream(LONG, 3.1, [4.2]), refused)
    counts, values = of_itl(LoadRun("x", itl_load(1), Budgets(), outcomes, {}, {}))
    found = Measured("vllm", 1, ITL, 1, counts, values, about="itl")
    assert "| 1 of 2 |" in as_markdown([found], {})


def test_a_message_of_several_tokens_has_several_itl():
    outcome = Outcome(0, 0, "x", 0, 0, 3, 9, 6, 200, 6, ((1.0, 1), (2.0, 2), (3.5, 3)))
    assert itls_between(outcome, 1.5, 9) == [0.5] * 5
    assert itls_between(outcome, 2.0, 3.4) == []


def test_a_load_becomes_counts_and_values():
    load = burst_load(BurstShape(), 1)
    outcomes = (
        _stream(CALM, 1, [1.5, 1.52]),
        _stream(BURST, 51, [53.5, 53.6]),
        Outcome(2, 0, BURST, 52, 52, 52.01, 9, 2, 429, retry_after_s=1.0),
        Outcome(2, 1, BURST, 53.01, 53.01, 54, 9, 1, 200, 1, ((53.9, 1),)),
    )
    counts, values = of_load(LoadRun("x", load, Budgets(), outcomes, {}, {}, host_cores=0.25))
    assert values["host_cores"] == [0.25]
    assert counts[ALL]["requests"] == 3
    assert counts[BURST] == {"requests": 2, "within_goals": 0, "late": 1, "refused": 1, "failed": 0}
    assert counts["returned"] == {"requests": 1, "answered": 1, "within_goals": 1}
    assert values[f"ttft {BURST}"] == [2.5]
    assert values["refusal"] == [0.01]
    # The stream waits for its first token all the while.
    assert values["over_work"] == [1.0]
    lost = replace(outcomes[0], error="lost")
    run = LoadRun("x", load, Budgets(), (lost, lost, outcomes[1]), {}, {})
    assert failures(run) == ["lost"]
    found = Measured(POOLS, 1, "burst", 1, counts, values)
    assert found.line().startswith("1 of 3 within goals, 1 refused, in the burst 0 of 2")


def test_an_error_is_short():
    assert len(of_error(ValueError("x" * 5000))) == 800
