"""The sentences for a request: each says what is known, and no more."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from cluster.admission.refusal_reasons import REASONS
from cluster.console.ttft_sample import STAGES
from cluster.console.words import REASON_NAMES, STAGE_NAMES, in_words
from cluster.telemetry.requests.behind import blockers
from cluster.telemetry.requests.row import ChoiceRow, RequestRow, whole
from cluster.telemetry.requests.stages import FailoverSpan

TIMES = {"admitted_s": 1.0, "sent_s": 1.0, "queue_s": 1.1, "prefill_s": 0.1, "ttft_s": 1.2}


def sentences(row: RequestRow, rows: tuple[RequestRow, ...] = ()) -> list[str]:
    found = whole(row) | {"behind": [asdict(one) for one in blockers(row, [row, *rows])]}
    return [one for part in in_words(found).values() for one in part]


def request_row(*choices: ChoiceRow, **known: object) -> RequestRow:
    given = {"tenant": "acme", "received_at": 100.0, "total_s": 3.0, **known}
    return RequestRow("r", "chat", "v", "ok", choices=choices, **given)  # type: ignore[arg-type]


def choice(number: int = 0, **times: object) -> ChoiceRow:
    given = {**TIMES, **times}
    return ChoiceRow(number, "handed_over", "p0", "d0", **given)  # type: ignore[arg-type]


def test_a_request_that_was_never_decided_about_says_behind_whom_it_stood():
    row = request_row(
        choice(), waited_for="batch_prompts", stood_behind=True, queued_before=70, queued_s=0.995
    )
    assert (
        "It waited in the router's queue for 995 ms behind 70 requests, which waited because "
        "enough prompts of the batch lane wait already."
    ) in sentences(row)
    own = request_row(choice(), waited_for="kv_blocks", queued_before=2, queued_s=0.5)
    found = sentences(own)
    assert (
        "It waited in the router's queue for 500 ms because the KV cache might have no capacity "
        "for its answer; 2 requests were before it when it came."
    ) in found
    assert "500 ms passed in the router outside its queue: it was read and tokenised." in found


def test_a_stage_that_goes_on_is_told_so_far():
    decodes = choice(transfer_end_s=1.25, offered_s=1.2, decode_admitted_s=1.24, running_s=4.0)
    row = request_row(replace(decodes, completion_tokens=7), total_s=None)
    found = sentences(row)
    assert "choice 0 on p0 -> d0: TTFT 1.20 s, 4.00 s so far" in found
    assert "Its decode goes on, for 2.75 s so far; it has 7 tokens." in found
    offered = sentences(request_row(choice(running_s=4.0), total_s=None))
    assert any(one.startswith("Its offer of KV goes on, for 2.80 s so far; ") for one in offered)
    assert not any("goes on" in one for one in sentences(request_row(choice(ttlt_s=4.0))))


def test_the_time_in_the_router_has_a_sentence_without_a_queue_too():
    expected = "1.00 s passed in the router outside its queue: it was read and tokenised."
    assert expected in sentences(request_row(choice()))


@pytest.mark.parametrize(
    ("waited_for", "sentence"),
    [
        ("blocks", "d0 had too few free KV blocks for it for 40.0 ms behind s (acme, chat, "),
        ("slots", "d0 had no free slot in its batch for 40.0 ms behind s (acme, chat, "),
        ("earlier", "At d0 requests before it found no room for 40.0 ms behind s (acme, chat, "),
        ("batch", "It waited 40.0 ms for the next batch of d0 to form."),
        ("nothing", "d0 had room for its KV at once, and asked for it after 40.0 ms."),
        (None, "Its KV was on offer to d0 for 40.0 ms."),
    ],
)
def test_decode_had_no_room_only_where_it_said_so(waited_for, sentence):
    row = request_row(
        choice(
            ttlt_s=2.0,
            offered_s=1.2,
            decode_admitted_s=1.24,
            transfer_end_s=1.25,
            decode_admission_s=0.04,
            decode_waited_for=waited_for,
        )
    )
    stream = RequestRow(
        *("s", "chat", "v", "ok", "acme"),
        received_at=95.0,
        total_s=9.0,
        choices=(choice(ttlt_s=8.0),),
    )
    found = sentences(row, (stream,))
    assert sum(one.startswith(sentence) for one in found) == 1
    assert "room for its KV for" not in " ".join(found)


def test_a_choice_names_the_choice_before_it():
    row = request_row(choice(), choice(1, queue_s=1.2, ttft_s=1.3))
    found = sentences(row)
    assert (
        "It was queued on p0 for 200 ms behind its choice 0 (acme, chat, 0 prompt tokens, 100 ms)."
    ) in found
    assert (
        "It was queued on p0 for 100 ms; no prompt is known that was computed there meanwhile."
    ) in found


def test_every_reason_and_stage_has_a_name():
    assert set(REASON_NAMES) == set(REASONS)
    assert tuple(STAGE_NAMES)[: len(STAGES)] == STAGES


def test_what_is_not_known_is_no_number():
    assert "; - prompt tokens, 0 tokens" in " ".join(sentences(request_row()))


def test_a_replica_that_was_lost_before_the_first_token_is_named():
    lost = FailoverSpan(0.4, 0.5, "p9"), FailoverSpan(1.5, 1.6, "d9")
    times = {"queue_s": 0.6, "prefill_s": 0.3, "ttft_s": 1.0, "ttlt_s": 2.0}
    said = sentences(request_row(choice(failovers=2, failover_spans=lost, **times)))
    assert [one for one in said if "was lost" in one] == [
        "p9 was lost 400 ms after its arrival; it began again 100 ms later.",
        "d9 was lost: from 1.50 s after its arrival on it got no token for 100 ms.",
    ]


def test_a_row_of_an_older_router_has_its_other_words():
    """It has the ITL by other names; an upgrade must not hide its requests."""
    times = {"itl_p50_s": 0.01, "itl_p95_s": 0.02, "longest_stall_s": 0.03, "ttlt_s": 2.0}
    row = whole(request_row(choice(**times)))
    (older,) = row["choices"]
    older |= {"gap_p50_s": older.pop("itl_p50_s"), "gap_p95_s": older.pop("itl_p95_s")}
    assert in_words(row | {"behind": []})["0"]


def test_a_router_that_was_lost_before_the_first_token_is_named():
    lost = FailoverSpan(0.1, 0.5)
    said = sentences(request_row(choice(failovers=1, failover_spans=(lost,), ttlt_s=2.0)))
    assert (
        said[-1]
        == "Its router was lost before its first token; it began again 500 ms after it came."
    )
    assert not any("read and tokenised" in one for one in said), "nobody knows that"


def test_a_lost_router_and_a_loss_without_a_pause_are_said():
    lost = FailoverSpan(1.5, 1.9), FailoverSpan(1.9, 1.9, "d9")
    said = sentences(request_row(choice(failovers=2, failover_spans=lost, retries=2, ttlt_s=2.0)))
    assert said[-3:] == [
        "Its router was lost: from 1.50 s after its arrival on it got no token for 400 ms.",
        "d9 was lost, and no token was late for that.",
        "Full replicas refused it twice meanwhile.",
    ]


@pytest.mark.parametrize(
    ("moved", "end_s", "ttlt_s", "sentence"),
    [
        (2_500_000, 1.3, 2.0, "Its KV (2.5 MB) was handed over; that delayed its second token by"),
        (32_768, 1.15, 2.0, "Its KV (32.8 kB) was handed over; that delayed no token."),
        (32_768, 1.15, 1.2, "Its KV (32.8 kB) was handed over."),
    ],
)
def test_a_hand_over_says_what_it_delayed(moved, end_s, ttlt_s, sentence):
    times = {"offered_s": 1.1, "decode_admitted_s": 1.1, "transfer_begin_s": 1.1}
    one = choice(**times, transfer_end_s=end_s, ttlt_s=ttlt_s, transfer_bytes=moved)
    (said,) = (told for told in sentences(request_row(one)) if told.startswith("Its KV"))
    assert said.startswith(sentence)


def test_numbers_agree_with_their_words():
    row = request_row(
        choice(preemptions=1, recomputed_tokens=1),
        waited_for="kv_blocks",
        queued_before=1,
        queued_s=0.5,
    )
    said = " ".join(sentences(row))
    assert "1 request was before it when it came." in said
    assert "It lost its KV blocks once to requests before it." in said
    assert "1 of its tokens was computed again." in said
    assert "1 prompt token, 1 token" in " ".join(
        sentences(request_row(prompt_tokens=1, completion_tokens=1))
    )
