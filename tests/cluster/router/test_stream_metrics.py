"""What a stream is counted as, from what came and when."""

from __future__ import annotations

import pytest

from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.api import ChoiceSummary, Tokens
from cluster.parsing.answer_form import AnswerForm
from cluster.placement.replica_load import LoadShare
from cluster.placement.types import Forecast, Pair, PlacementPlan, PlacementRequest
from cluster.replica_record import ReplicaRecord
from cluster.router import stream_metrics as stream_record
from cluster.router.rows.stage_times import StageTimes
from cluster.router.stream_metrics import StreamMetrics, is_meaningful
from tests.metrics_page import Recorded, recorded

LABELS = {"endpoint": "chat", "lane": "interactive", "tenant": "default"}
BEGAN_S = 100.0


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = BEGAN_S

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stream_record, "time", clock)
    return clock


def begun(
    *, batch: bool = False, emitted: list[Tokens] | None = None, form: str = ""
) -> StreamMetrics:
    ask = PlacementRequest(
        prompt_tokens=4, most_tokens=9, arrived_s=BEGAN_S, budget_s=0.5, batch=batch
    )
    pair = Pair(*(ReplicaRecord(f"{role}-0", role, "a:1", 1) for role in ("prefill", "decode")))
    forecast = Forecast(ttft_s=0.3, deadline_s=BEGAN_S + 0.5)
    hold = LoadShare(lambda: None)
    assignment = Assignment(
        ask, PlacementPlan(pair, forecast), (hold, hold), BEGAN_S, lambda tokens: None
    )
    sink = [] if emitted is None else emitted
    return StreamMetrics(LABELS, assignment, StageTimes(BEGAN_S), sink.append, form)


def say(record: StreamMetrics, clock: Clock, at_s: float, *texts: str) -> None:
    clock.now = BEGAN_S + at_s
    record.take(Tokens(0, 0, tuple(range(len(texts))), "".join(texts)))


def summary(prefill: str = "prefill-0") -> ChoiceSummary:
    return ChoiceSummary(0, 0.1, 0.2, 0.0, 0.3, 0.05, 0.02, 1.0, 0, prefill, "decode-0")


def sums(page: Recorded, name: str, **labels: str) -> tuple[float, float]:
    """How often, and how much in all."""
    return page.value(f"{name}_count", **labels), page.value(f"{name}_sum", **labels)


def test_a_stream_is_counted_from_its_first_token_to_its_last(clock: Clock) -> None:
    emitted: list[Tokens] = []
    with recorded() as page:
        record = begun(emitted=emitted)
        record.times.queue_s, record.times.committed_s = 0.05, BEGAN_S + 0.3
        say(record, clock, 0.25, "\n")
        record.first(FirstTokenTiming(prefill_s=0.15, cached_tokens=0, flush_s=0.05, ttft_s=0.25))
        say(record, clock, 0.35, " -", " A")
        say(record, clock, 0.85, "b", "c")
        record.finished(summary())
        record.close()
    assert [len(event.ids) for event in emitted] == [1, 2, 2]
    assert sums(page, "tandem_ttft_seconds", **LABELS) == (1, 0.25)
    assert sums(page, "tandem_ttfmt_seconds", **LABELS) == (1, pytest.approx(0.35))
    assert sums(page, "tandem_inter_token_latency_seconds") == (1, pytest.approx(0.6 / 4))
    assert sums(page, "tandem_stream_pause_seconds") == (1, pytest.approx(0.5))
    assert sums(page, "tandem_ttft_budget_ratio", endpoint="chat") == (1, 0.5)
    assert sums(page, "tandem_ttft_predicted_ratio") == (1, pytest.approx(1.2))
    assert page.value("tandem_answer_tokens_total", **LABELS) == 5
    stages = ("queue", "prefill", "first_flush")
    whole = sum(page.value("tandem_stage_seconds_sum", stage=stage) for stage in stages)
    assert whole == pytest.approx(0.25)
    assert sums(page, "tandem_stage_seconds", stage="transfer") == (1, 0.05)
    assert sums(page, "tandem_stage_seconds", stage="decode_admission") == (1, 0.02)


def test_tokens_of_another_router_are_in_the_row_and_counted_there(clock: Clock) -> None:
    with recorded() as page:
        record = begun()
        record.follow(
            [(BEGAN_S + 0.2, Tokens(0, 0, (1, 2), "A B")), (BEGAN_S + 0.3, Tokens(0, 2, (3,), "C"))]
        )
        say(record, clock, 2.3, "D")
        record.close()
    row = record.row()
    assert (row.completion_tokens, row.ttfmt_s) == (4, pytest.approx(0.2))
    assert (row.longest_stall_s, row.ttlt_s) == (pytest.approx(2.0), pytest.approx(2.3))
    assert row.tokens_per_s == pytest.approx(3 / 2.1)
    assert page.value("tandem_answer_tokens_total", **LABELS) == 1
    assert page.value("tandem_ttfmt_seconds_count") == 0


def test_reasoning_is_no_meaningful_token(clock: Clock) -> None:
    with recorded() as page:
        record = begun(form=AnswerForm(calls="hermes", reasoning="think").text())
        say(record, clock, 0.25, "<think>", "so")
        say(record, clock, 0.35, "</think>", "\n")
        say(record, clock, 0.45, "A")
    assert sums(page, "tandem_ttfmt_seconds", **LABELS) == (1, pytest.approx(0.45))


def test_a_call_is_a_meaningful_token(clock: Clock) -> None:
    with recorded() as page:
        record = begun(form=AnswerForm(calls="hermes").text())
        say(record, clock, 0.25, "<tool_call>")
        say(record, clock, 0.35, '{"name": "get", "arguments": {')
    assert sums(page, "tandem_ttfmt_seconds", **LABELS) == (1, pytest.approx(0.35))


def test_a_stream_that_never_began_took_no_time(clock: Clock) -> None:
    with recorded() as page:
        begun().close()
    assert page.value("tandem_answer_tokens_total") == 0
    for name in ("ttft", "ttfmt", "itl", "stream_pause"):
        assert page.value(f"tandem_{name}_seconds_count") == 0


def test_the_batch_lane_has_no_budget(clock: Clock) -> None:
    with recorded() as page:
        begun(batch=True).first(FirstTokenTiming(0.1, 0, 0.0, 9.0))
    assert page.value("tandem_ttft_seconds_count") == 1
    assert page.value("tandem_ttft_budget_ratio_count") == 0
    assert page.value("tandem_ttft_predicted_ratio_count") == 0


def test_a_choice_without_a_hand_over_has_no_transfer_time(clock: Clock) -> None:
    with recorded() as page:
        record = begun()
        say(record, clock, 0.1, "a", "b")
        record.finished(summary(prefill="decode-0"))
        one = begun()
        one.times.committed_s = BEGAN_S + 0.1
        say(one, clock, 0.1, "a")
        one.finished(summary())
    assert page.value("tandem_stage_seconds_count", stage="transfer") == 0


@pytest.mark.parametrize(
    ("text", "meaningful"),
    [
        ("", False),
        ("\n", False),
        (" - *", False),
        ("…", False),
        (" a", True),
        ("7", True),
        ("ä", True),
        ("好", True),
    ],
)
def test_a_token_with_a_letter_or_digit_means_something(text: str, meaningful: bool) -> None:
    assert is_meaningful(text) is meaningful


def test_the_row_of_a_choice_that_runs_ends_now_and_that_of_one_that_ended_does_not(clock: Clock):
    record = begun()
    record.times.ttft_s = 0.2
    say(record, clock, 0.2, "A")
    say(record, clock, 0.5, "B")
    clock.now = BEGAN_S + 2.0
    runs = record.so_far()
    assert (runs.running_s, runs.ttlt_s, runs.completion_tokens) == (2.0, None, 2)
    assert runs.tokens_per_s is None, "it depends on all tokens"
    record.close()
    clock.now = BEGAN_S + 9.0
    ended = record.so_far()
    assert (ended.running_s, ended.ttlt_s) == (None, pytest.approx(0.5))
    assert ended == record.row()
