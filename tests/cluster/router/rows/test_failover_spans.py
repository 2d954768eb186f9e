"""When a choice failed over: one span for each loss, where in time the choice stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.router.rows.failover_spans import ChoiceMarks, ReplicaLoss, failover_spans

# Arrived at 100, asked for at 101; tokens came at 102, 103 and 106.
MARKS = ChoiceMarks(
    100.0, [102.0, 103.0, 106.0], 102.0, 101.0, committed_s=102.2, ended_s=107.0, waits_for_kv=True
)


def spans(*lost_s: float, marks: ChoiceMarks = MARKS) -> list[tuple[float, float, str]]:
    asked = [100.5, 100.7, 100.9] if lost_s and lost_s[0] < 101 else [101.0] * 3
    losses = [ReplicaLoss(at, sent, "p", "d") for at, sent in zip(lost_s, asked, strict=False)]
    found = failover_spans(losses, marks)
    return [(round(one.begin_s, 6), round(one.end_s, 6), one.replica) for one in found]


def test_without_a_loss_there_is_none():
    assert spans() == []


def test_between_two_tokens_it_begins_with_the_last_one():
    assert spans(104.5) == [(3.0, 6.0, "d")]
    assert spans(102.5) == [(2.2, 3.0, "d")], "decode had the KV later than the first token"


def test_before_the_kv_came_it_begins_with_the_loss():
    waiting = replace(MARKS, committed_s=None)
    assert spans(102.5, marks=waiting) == [(2.5, 3.0, "d")]
    here = replace(waiting, waits_for_kv=False)
    assert spans(102.5, marks=here) == [(2.0, 3.0, "d")]


def test_before_the_first_token_it_ends_with_the_next_request_for_it():
    assert spans(100.6, 100.8) == [(0.6, 0.7, "p"), (0.8, 1.0, "p")]


def test_two_losses_in_one_pause_share_it():
    assert spans(104.0, 105.0) == [(3.0, 5.0, "d"), (5.0, 6.0, "d")]
    assert spans(102.5, 104.0) == [(2.2, 3.0, "d"), (3.0, 6.0, "d")]


def test_without_a_further_token_it_lasts_to_the_end():
    assert spans(106.5) == [(6.0, 7.0, "d")]
    unasked = replace(MARKS, came_s=[], first_s=None, sent_s=100.5)
    assert spans(100.6, marks=unasked) == [(0.6, 7.0, "p")]


@pytest.mark.parametrize(
    ("adopted_s", "lost_s", "expected"),
    [
        (104.0, (), [(4.0, 6.0, "")]),
        (104.0, (105.0,), [(4.0, 5.0, ""), (5.0, 6.0, "d")]),
        (101.0, (), [(0.0, 1.0, "")]),
        (101.0, (104.0,), [(0.0, 1.0, ""), (3.0, 6.0, "d")]),
    ],
)
def test_a_lost_router_is_a_failover_too(adopted_s, lost_s, expected):
    came_s = [106.0] if adopted_s > 102 else MARKS.came_s
    adopted = replace(MARKS, adopted_s=adopted_s, came_s=came_s)
    assert spans(*lost_s, marks=adopted) == expected


@pytest.mark.parametrize(
    ("stopped_s", "adopted_s", "lost_s", "expected"),
    [
        (103.0, 104.0, (), [(3.0, 6.0, "")]),
        (103.0, 104.0, (105.0,), [(3.0, 5.0, ""), (5.0, 6.0, "d")]),
        (103.0, 104.0, (106.5,), [(3.0, 6.0, ""), (6.0, 7.0, "d")]),
        (100.2, 101.0, (), [(0.2, 1.0, "")]),
        (104.5, 104.0, (), [(4.0, 6.0, "")]),  # by another clock
    ],
)
def test_the_failover_of_a_lost_router_begins_with_its_last_token(
    stopped_s, adopted_s, lost_s, expected
):
    adopted = replace(MARKS, adopted_s=adopted_s, stopped_s=stopped_s)
    assert spans(*lost_s, marks=adopted) == expected
