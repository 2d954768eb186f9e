"""What a request waited behind, from the rows of the others."""

from __future__ import annotations

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
        ("long", "queue", 1.9),
        ("before", "queue", 1.0),
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
