"""The spans of a request, from its row."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from cluster.telemetry.requests.row import RequestRow
from cluster.telemetry.requests.stages import FailoverSpan
from cluster.telemetry.traces.stage_spans import MOST_CHOICES, request_attributes, stage_spans
from tests.cluster.telemetry.requests.test_stages import CHOICE

ROW = RequestRow("r-1", "chat", "3f9a1c02", "ok", "acme", prompt="a secret", choices=(CHOICE,))


def test_they_stand_beside_each_other_in_the_order_of_the_stages():
    spans = stage_spans(ROW)
    assert [one.name for one in spans] == [
        *("admission", "prefill_queue", "prefill", "first_flush", "offer", "decode_admission"),
        *("transfer", "decode", "last_flush"),
    ]
    assert all(a.end_s == pytest.approx(b.begin_s) for a, b in pairwise(spans))
    assert spans[-1].end_s == pytest.approx(CHOICE.ttlt_s)
    replicas = {one.name: one.attributes.get("tandem.replica") for one in spans}
    assert (replicas["prefill"], replicas["decode"], replicas["offer"]) == ("p0", "d0", None)


def test_a_failover_is_linked_to_what_it_broke_off():
    spans_of_loss = (FailoverSpan(1.2, 1.5, "d9"),)
    lost = replace(CHOICE, choice=1, completion_tokens=40, failover_spans=spans_of_loss)
    row = replace(ROW, choices=(CHOICE, lost))
    spans = stage_spans(row)
    (failover,) = (one for one in spans if one.name == "failover")
    broken = spans[failover.breaks_off]
    assert broken.attributes["tandem.choice"] == failover.attributes["tandem.choice"] == 1
    assert (broken.name, broken.attributes["tandem.replica"]) == ("decode", "d9")
    assert broken.end_s == pytest.approx(failover.begin_s)
    following = spans[failover.breaks_off + 2]
    assert (following.name, following.attributes["tandem.replica"]) == ("decode", "d0")
    assert following.attributes["tandem.completion_tokens"] == 40
    assert "tandem.completion_tokens" not in broken.attributes, "they are told once"


def test_a_request_with_many_choices_has_a_bound():
    row = replace(ROW, choices=tuple(replace(CHOICE, choice=n) for n in range(99)))
    assert {one.attributes["tandem.choice"] for one in stage_spans(row)} == set(range(MOST_CHOICES))


def test_no_prompt_and_no_unknown_value_is_told():
    told = request_attributes(ROW)
    assert "a secret" not in told.values() and None not in told.values()
    assert (told["tandem.endpoint"], told["tandem.tenant"]) == ("chat", "acme")
    assert not stage_spans(replace(ROW, choices=()))
