"""What a request waited behind, from the rows of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.telemetry.requests.behind import blockers
from cluster.telemetry.requests.row import ChoiceRow, RequestRow


def row(name: str, received_at: float, **times: object) -> RequestRow:
    given = {"prefill_replica": "p0", "decode_replica": "d0"} | times
    choice = ChoiceRow(0, "handed_over", **given)  # type: ignore[arg-type]
    return RequestRow(
        *(name, "chat", "v", "ok", "acme"),
        received_at=received_at,
        total_s=10.0,
        prompt_tokens=7,
        choices=(choice,),
    )


def test_the_prompts_of_its_prefill_replica_come_first_by_their_share_of_its_wait():
    late = row("late", 101.0, queue_s=3.0, prefill_s=1.0)
    others = [
        row("before", 100.0, queue_s=0.5, prefill_s=1.5),  # to 102
        row("long", 100.0, queue_s=2.0, prefill_s=1.9),  # 102 to 103.9
        row("elsewhere", 100.0, queue_s=0.5, prefill_s=9.0, prefill_replica="p1"),
        row("behind", 101.0, queue_s=5.0, prefill_s=1.0),
        row("over", 10.0, queue_s=0.5, prefill_s=1.0),
    ]
    found = blockers(late, [*others, late])
    assert [(one.request_id, one.stage, round(one.seconds, 3)) for one in found] == [
        ("long", "prefill_queue", 1.9),
        ("before", "prefill_queue", 1.0),
    ]
    assert (found[0].tenant, found[0].prompt_tokens, found[0].replica) == ("acme", 7, "p0")


def test_the_streams_of_a_full_decode_replica_are_named():
    waits = row("waits", 100.0, offered_s=1.0, decode_admitted_s=3.0)
    others = [
        row("running", 95.0, ttft_s=1.0, ttlt_s=7.5),
        row("elsewhere", 95.0, ttft_s=1.0, ttlt_s=7.5, decode_replica="d1"),
        row("ended", 95.0, ttft_s=1.0, ttlt_s=5.5),
    ]
    found = blockers(waits, others)
    assert [(one.request_id, one.stage, one.seconds) for one in found] == [
        ("running", "decode_admission", 1.5)
    ]


def test_few_are_named():
    late = row("late", 100.0, queue_s=9.0)
    others = [row(f"r{n}", 99.0, queue_s=1.0 + n / 10, prefill_s=1.0) for n in range(20)]
    assert len(blockers(late, others)) == 5


def test_the_wait_begins_when_the_replica_was_asked_and_not_at_the_arrival():
    """The router let it wait for 3 s; what its replica computed meanwhile did not delay it."""
    late = row("late", 100.0, admitted_s=3.0, sent_s=3.1, queue_s=3.15, prefill_s=0.1)
    others = [
        row("meanwhile", 100.0, queue_s=0.5, prefill_s=2.5),  # to 103
        row("at its replica", 100.0, queue_s=3.0, prefill_s=0.13),  # 103 to 103.13
    ]
    found = blockers(late, [*others, late])
    assert [(one.request_id, round(one.seconds, 3)) for one in found] == [("at its replica", 0.03)]


def test_a_choice_may_wait_behind_another_choice_of_its_request():
    first, second = (
        ChoiceRow(n, "handed_over", "p0", "d0", sent_s=0.1, queue_s=queue_s, prefill_s=1.0)
        for n, queue_s in enumerate((0.1, 1.1))
    )
    both = replace(row("both", 100.0), choices=(first, second))
    (found,) = blockers(both, [both])
    assert (found.choice, found.of_choice, found.request_id) == (1, 0, "both")
    assert found.seconds == pytest.approx(1.0)
    # It names it once where it runs, too, and where it has just ended.
    runs = replace(both, outcome="running", total_s=None)
    assert [one.of_choice for one in blockers(runs, [], [runs])] == [0]
    assert [one.of_choice for one in blockers(both, [both], [runs])] == [0]


def test_prompts_that_share_a_pass_or_take_turns_share_the_wait():
    late = row("late", 100.0, sent_s=0.0, queue_s=1.0, prefill_s=0.1)
    others = [
        row(name, 100.0, queue_s=0.0, prefill_s=2.0, prefill_share_s=share_s)
        for name, share_s in (("most", 1.4), ("less", 0.6))
    ]
    found = blockers(late, [late, *others])
    assert [(one.request_id, round(one.seconds, 3)) for one in found] == [
        *(("most", 0.7), ("less", 0.3)),
    ]


def test_requests_that_still_run_are_named_once():
    late = row("late", 101.0, queue_s=3.0, prefill_s=1.0, offered_s=4.0, decode_admitted_s=4.5)
    times = {"queue_s": 0.5, "prefill_s": 1.5, "ttft_s": 2.0, "ttlt_s": None}
    runs = replace(row("runs", 100.0, **times), outcome="running", total_s=None)
    # Its task has ended, and its row is there, but it is not removed yet.
    twice = replace(late, outcome="running", total_s=None)
    found = blockers(late, [late], [runs, twice])
    assert [(one.request_id, one.stage, round(one.seconds, 3), one.running) for one in found] == [
        ("runs", "prefill_queue", 1.0, True),
        ("runs", "decode_admission", 0.5, True),
    ]
    # One choice has got its last token, and another one of the request goes on.
    choice = replace(runs.choices[0], ttlt_s=2.0)
    found = blockers(late, [late], [replace(runs, choices=(choice,))])
    assert [one.stage for one in found] == ["prefill_queue"]
