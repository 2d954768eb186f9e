"""The stages of a choice: each has its own begin and end, and they add up to TTFT and to TTLT."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.telemetry.requests.row import (
    ChoiceRow,
    RequestRow,
    brief,
    faults_of,
    whole,
    with_choices,
)
from cluster.telemetry.requests.stages import FailoverSpan, stage_faults, stage_marks, stages_of
from tests.served_rows import faults_told

CHOICE = ChoiceRow(
    *(0, "handed_over", "p0", "d0"),
    admitted_s=0.1,
    sent_s=0.11,
    queue_s=0.3,
    prefill_s=0.4,
    first_flush_s=0.05,
    ttft_s=0.75,
    ttlt_s=2.0,
    offered_s=0.8,
    decode_admitted_s=0.82,
    transfer_begin_s=0.82,
    transfer_end_s=0.85,
    decode_admission_s=0.02,
    transfer_exposed_s=0.03,
    decode_s=1.1,
    decoded_s=1.95,
)
LOST = FailoverSpan(1.2, 1.5, "d9")
seconds = st.floats(0, 100)


def took(choice: ChoiceRow) -> dict[str, float]:
    return {one.stage: pytest.approx(one.end_s - one.begin_s) for one in stages_of(choice)}


def told(choice: ChoiceRow) -> list[tuple[str, float, float]]:
    return [(one.stage, round(one.begin_s, 6), round(one.end_s, 6)) for one in stages_of(choice)]


def test_they_are_those_that_the_choice_went_through():
    assert told(CHOICE) == [
        ("admission", 0.0, 0.1),
        ("prefill_queue", 0.1, 0.3),
        ("prefill", 0.3, 0.7),
        ("first_flush", 0.7, 0.75),
        ("offer", 0.75, 0.8),
        ("decode_admission", 0.8, 0.82),
        ("transfer", 0.82, 0.85),
        ("decode", 0.85, 1.95),
        ("last_flush", 1.95, 2.0),
    ]
    assert not stage_faults(CHOICE)


def test_a_transfer_beside_the_prefill_delays_nothing():
    times = {"offered_s": 0.2, "decode_admitted_s": 0.3, "transfer_begin_s": 0.3}
    early = replace(CHOICE, **times, transfer_end_s=0.7, decode_s=1.24)
    assert not {"offer", "decode_admission", "transfer"} & took(early).keys()
    assert took(early)["decode"] == 1.2, "until the first token nobody waited for decode"
    assert not stage_faults(early)


def test_a_failover_after_the_first_token_stands_between_two_stretches_of_decode():
    """Although the prompt was sent 10 ms after its admission, no failover is before the prefill."""
    moved = replace(CHOICE, failovers=1, failover_spans=(LOST,), failover_pause_s=0.3, decode_s=0.6)
    assert told(moved)[:4] == told(CHOICE)[:4]
    assert told(moved)[7:] == [
        ("decode", 0.85, 1.2),
        ("failover", 1.2, 1.5),
        ("decode", 1.5, 1.95),
        ("last_flush", 1.95, 2.0),
    ]
    assert [one.replica for one in stage_marks(moved)][7:] == ["d9", "d9", "d0", "d0"]
    assert not stage_faults(moved)


def test_a_failover_before_the_first_token_stands_between_two_queues():
    lost = replace(CHOICE, failover_spans=(FailoverSpan(0.15, 0.2, "p9"),))
    assert told(lost)[:4] == [
        ("admission", 0.0, 0.1),
        ("prefill_queue", 0.1, 0.15),
        ("failover", 0.15, 0.2),
        ("prefill_queue", 0.2, 0.3),
    ]
    assert [one.replica for one in stage_marks(lost)][:4] == ["", "p9", "p9", "p0"]
    assert not stage_faults(lost)


RUNS = replace(CHOICE, ttlt_s=None, decode_s=None, decoded_s=None, running_s=3.0)


def test_a_choice_that_runs_decodes_until_now():
    assert told(RUNS) == [*told(CHOICE)[:7], ("decode", 0.85, 3.0)]
    assert not stage_faults(RUNS)
    local = replace(RUNS, route="local", offered_s=None, transfer_end_s=None)
    assert told(local) == [*told(CHOICE)[:4], ("decode", 0.75, 3.0)]
    assert not stage_faults(local)


def test_a_choice_that_runs_is_on_offer_until_decode_has_its_kv():
    waits = replace(RUNS, offered_s=None, decode_admitted_s=None, transfer_end_s=None)
    assert told(waits) == [*told(CHOICE)[:4], ("offer", 0.75, 3.0)]
    assert not stage_faults(waits)


def test_a_choice_that_runs_may_be_between_two_replicas():
    moved = replace(RUNS, failover_spans=(LOST,))
    assert told(moved)[7:] == [
        ("decode", 0.85, 1.2),
        ("failover", 1.2, 1.5),
        ("decode", 1.5, 3.0),
    ]
    moves = replace(RUNS, failover_spans=(FailoverSpan(1.2, 3.0, "d9"),))
    assert told(moves)[7:] == [("decode", 0.85, 1.2), ("failover", 1.2, 3.0)]
    assert not stage_faults(moved) + stage_faults(moves)


def test_each_loss_has_a_failover():
    spans = (FailoverSpan(1.2, 1.3, "d9"), FailoverSpan(1.3, 1.5, "d8"), FailoverSpan(1.7, 1.8))
    moved = replace(CHOICE, failover_spans=spans)
    assert [name for name, *_ in told(moved)[7:]] == [
        *("decode", "failover", "failover", "decode", "failover", "decode", "last_flush")
    ]
    assert not stage_faults(moved)


def test_a_choice_of_a_lost_router_goes_on_after_a_failover():
    adopted = replace(
        CHOICE, route="local", admitted_s=1.2, transfer_end_s=None, failover_spans=(LOST,)
    )
    assert [name for name, *_ in told(adopted)] == [
        *("admission", "prefill_queue", "prefill", "first_flush"),
        *("decode", "failover", "decode", "last_flush"),
    ]
    assert told(adopted)[:2] == [("admission", 0.0, 0.11), ("prefill_queue", 0.11, 0.3)]
    handed_over = replace(adopted, route="handed_over", failover_spans=(FailoverSpan(1.2, 1.5),))
    assert told(handed_over) == told(adopted)
    begun_here = replace(CHOICE, failover_spans=(FailoverSpan(0.04, 0.1),))
    assert told(begun_here)[:3] == [
        ("admission", 0.0, 0.04),
        ("failover", 0.04, 0.1),
        ("prefill_queue", 0.1, 0.3),
    ]
    assert not stage_faults(adopted) + stage_faults(handed_over) + stage_faults(begun_here)


def test_a_choice_without_a_token_has_the_stages_that_are_known():
    assert took(ChoiceRow(0, "local", admitted_s=0.2)) == {"admission": 0.2}
    lost = ChoiceRow(0, "local", admitted_s=0.2, failover_spans=(FailoverSpan(0.5, 0.9, "p0"),))
    assert took(lost) == {"admission": 0.2, "prefill_queue": 0.3, "failover": 0.4}
    assert not stages_of(ChoiceRow(0, "local"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefill_s": 0.6},  # the queue in the prefill again
        {"prefill_s": 0.3},  # a pass of the prompt is missing
        {"queue_s": 0.25},  # the preparation of a grammar is missing
        {"first_flush_s": 0.02},  # the way to the router is missing
        {"decode_s": 1.7},  # the prompt in decode again
        {"decode_s": 0.9},  # a step is missing
        {"transfer_end_s": 0.9, "transfer_exposed_s": 0.08},  # a part of decode in the transfer
        {"transfer_exposed_s": 0.2},  # what was moved beside the prefill in the transfer again
        {"failover_spans": (FailoverSpan(0.15, 0.4, "p9"),)},  # beside the prefill
        {"queue_s": 0.05, "admitted_s": -0.2, "first_flush_s": 0.3},
    ],
)
def test_what_is_missing_or_counted_twice_is_found(wrong):
    choice = replace(CHOICE, **wrong)
    assert stage_faults(choice)
    assert faults_of(RequestRow("r", "chat", "v", "ok", choices=(choice,)))


@given(
    admission=seconds,
    queue=seconds,
    prefill=seconds,
    flush=seconds,
    waits=st.tuples(seconds, seconds, seconds),
    early=seconds,
    decode=st.lists(seconds, min_size=1, max_size=4),
    pauses=st.tuples(seconds, seconds, seconds),
    last=seconds,
)
def test_they_add_up_whatever_was_measured(
    admission, queue, prefill, flush, waits, early, decode, pauses, last
):
    """A hand-over may begin `early`, beside the prefill. Stretches of decode have failovers between
    them.
    """
    ttft_s = admission + queue + prefill + flush
    offered_s = max(0.0, ttft_s + waits[0] - early)
    granted_s = offered_s + waits[1]
    end_s = granted_s + waits[2]
    at_s, spans = max(ttft_s, end_s), []
    for stretch_s, pause_s in zip(decode, pauses, strict=False):
        if len(spans) + 1 < len(decode):
            spans.append(FailoverSpan(at_s + stretch_s, at_s + stretch_s + pause_s, "d9"))
            at_s = spans[-1].end_s
    decoded_s = at_s + decode[-1]
    choice = ChoiceRow(
        *(0, "handed_over"),
        admitted_s=admission,
        queue_s=admission + queue,
        prefill_s=prefill,
        first_flush_s=flush,
        ttft_s=ttft_s,
        ttlt_s=decoded_s + last,
        offered_s=offered_s,
        decode_admitted_s=granted_s,
        transfer_begin_s=granted_s,
        transfer_end_s=end_s,
        transfer_exposed_s=waits[2],
        decode_s=decoded_s - end_s if not spans else decode[-1],
        decoded_s=decoded_s,
        failover_spans=tuple(spans),
    )
    assert not stage_faults(choice)
    stages = stages_of(choice)
    for one, following in pairwise(stages):
        assert one.end_s == pytest.approx(following.begin_s, abs=1e-6)
    if stages:
        assert stages[-1].end_s == pytest.approx(decoded_s + last)


def test_a_row_as_plain_data_has_what_is_known():
    moved = replace(CHOICE, choice=1, failover_spans=(LOST,))
    row = RequestRow("r", "chat", "v", "ok", "acme", prompt="Hi", choices=(CHOICE, moved))
    flat = brief(row)
    assert (flat["request_id"], flat["ttft_s"], flat["prefill_replica"]) == ("r", 0.75, "p0")
    assert "reason" not in flat and "choices" not in flat and "prompt" not in flat
    found = whole(row)
    assert (found["prompt"], "answer" in found) == ("Hi", False)
    assert [one["choice"] for one in found["choices"]] == [0, 1]
    assert found["choices"][1]["stages"][0] == {"stage": "admission", "begin_s": 0.0, "end_s": 0.1}
    assert "failover_spans" not in found["choices"][0]
    assert found["choices"][1]["failover_spans"] == [
        {"begin_s": 1.2, "end_s": 1.5, "replica": "d9"}
    ]


def test_rows_that_were_told_as_json_are_checked_too():
    """As `tandem serve` tells them to the end-to-end tests."""
    moved = replace(CHOICE, choice=1, failover_spans=(LOST,))
    row = RequestRow("r", "chat", "v", "ok", choices=(CHOICE, moved))
    refused = RequestRow("q", "chat", "v", "Refused")
    one = replace(row, choices=(moved,))
    assert not faults_told(json.dumps([with_choices(each) for each in (row, refused, one)]))
    wrong = replace(row, choices=(CHOICE, replace(moved, prefill_s=0.6)))
    assert faults_told(json.dumps([with_choices(wrong)]))[0].startswith("r.1: ")
