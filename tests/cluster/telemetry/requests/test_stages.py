"""The stages of a choice: they lie behind each other, and add up to TTFT and TTLT."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.telemetry.requests.row import ChoiceRow, RequestRow, brief, faults_of, whole
from cluster.telemetry.requests.stages import stage_faults, stages_of

CHOICE = ChoiceRow(
    *(0, "handed_over", "p0", "d0"),
    admitted_s=0.1,
    sent_s=0.11,
    queue_s=0.3,
    prefill_s=0.4,
    first_flush_s=0.05,
    ttft_s=0.75,
    ttlt_s=2.0,
    decode_admission_s=0.02,
    transfer_exposed_s=0.03,
    transfer_end_s=0.85,
    decode_s=1.1,
)
seconds = st.floats(0, 100)


def took(choice: ChoiceRow) -> dict[str, float]:
    return {one.stage: pytest.approx(one.end_s - one.begin_s) for one in stages_of(choice)}


def test_they_are_those_that_the_choice_went_through():
    assert took(CHOICE) == {
        "admission": 0.1,
        "prefill_queue": 0.2,
        "prefill": 0.4,
        "first_flush": 0.05,
        "offer": 0.05,
        "decode_admission": 0.02,
        "transfer": 0.03,
        "decode": 1.1,
        "last_flush": 0.05,
    }
    assert stages_of(CHOICE)[-1].end_s == pytest.approx(2.0)
    assert not stage_faults(CHOICE)


def test_a_transfer_beside_the_prefill_delays_nothing():
    early = replace(CHOICE, transfer_end_s=0.7, decode_s=1.24)
    assert not {"offer", "decode_admission", "transfer"} & took(early).keys()
    assert took(early)["decode"] == 1.24


def test_a_lost_replica_has_its_place_before_the_first_token_or_behind_it():
    before = replace(CHOICE, failovers=1, sent_s=0.25)
    assert took(before)["failover"] == 0.15
    behind = replace(CHOICE, failovers=1, sent_s=0.1, failover_pause_s=0.5)
    assert took(behind)["failover"] == 0.5
    assert took(behind)["decode"] == 0.65
    assert not stage_faults(before) + stage_faults(behind)


def test_a_choice_without_a_token_has_the_stages_that_are_known():
    assert took(ChoiceRow(0, "local", admitted_s=0.2)) == {"admission": 0.2}
    assert not stages_of(ChoiceRow(0, "local"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefill_s": 0.6, "first_flush_s": -0.15},  # the queue in the prefill again
        {"decode_s": 1.7},  # the prompt in decode again
        {"queue_s": 0.05, "admitted_s": -0.2, "first_flush_s": 0.3},
    ],
)
def test_what_is_counted_twice_is_found(wrong):
    choice = replace(CHOICE, **wrong)
    assert stage_faults(choice)
    assert faults_of(RequestRow("r", "chat", "v", "ok", choices=(choice,)))


@given(
    admitted=seconds,
    queue=seconds,
    prefill=seconds,
    flush=seconds,
    rest=seconds,
    waits=st.tuples(seconds, seconds, seconds, seconds),
    decode=st.one_of(st.none(), seconds),
    failovers=st.integers(0, 2),
)
def test_they_add_up_whatever_was_measured(
    admitted, queue, prefill, flush, rest, waits, decode, failovers
):
    """Replicas measure within the whole, and nothing that they say makes a gap or an overlap."""
    ttft_s = queue + prefill + flush
    choice = ChoiceRow(
        *(0, "handed_over"),
        admitted_s=min(admitted, queue),
        sent_s=queue,
        queue_s=queue,
        prefill_s=prefill,
        first_flush_s=flush,
        ttft_s=ttft_s,
        ttlt_s=ttft_s + rest,
        decode_admission_s=waits[0],
        transfer_exposed_s=waits[1],
        transfer_end_s=waits[2],
        decode_s=None if decode is None else min(decode, rest + flush),
        failovers=failovers,
        failover_pause_s=min(waits[3], rest),
    )
    assert not stage_faults(choice)
    stages = stages_of(choice)
    for one, following in pairwise(stages):
        assert one.end_s == following.begin_s
    if stages:
        assert stages[-1].end_s == pytest.approx(ttft_s + rest)


def test_a_row_as_plain_data_has_what_is_known():
    choices = (CHOICE, replace(CHOICE, choice=1))
    row = RequestRow("r", "chat", "v", "ok", "acme", prompt="Hi", choices=choices)
    flat = brief(row)
    assert (flat["request_id"], flat["ttft_s"], flat["prefill_replica"]) == ("r", 0.75, "p0")
    assert "reason" not in flat and "choices" not in flat and "prompt" not in flat
    found = whole(row)
    assert (found["prompt"], "answer" in found) == ("Hi", False)
    assert [one["choice"] for one in found["choices"]] == [0, 1]
    assert found["choices"][1]["stages"][0] == {"stage": "admission", "begin_s": 0.0, "end_s": 0.1}
