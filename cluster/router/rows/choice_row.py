"""Makes the row of a choice from its times, when its request has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.admission.assignment import Assignment
from cluster.placement.types import Pair, PlacementPlan
from cluster.router.rows.failover_spans import ChoiceMarks, failover_spans
from cluster.router.rows.stage_times import StageTimes
from cluster.telemetry.requests.itl import StreamItl
from cluster.telemetry.requests.row import ChoiceRow, Route
from protos.decode_pb2 import Retired


def choice_row(
    choice: int,
    times: StageTimes,
    assignment: Assignment,
    first_plan: PlacementPlan | None,
    came_s: Sequence[float],
    itl: StreamItl,
    tokens: int,
    ttfmt_s: float | None,
    ended_s: float,
) -> ChoiceRow:
    """The row of a choice of so many tokens, whose events with tokens came at `came_s` (monotonic).

    `first_plan` is the plan with which it was admitted; None where another router began it. Then
    the tokens of that router are among these. `ended_s` is its end, or now (monotonic).
    """
    pair, forecast = assignment.plan.pair, first_plan.forecast if first_plan else None
    route = times.route or _route(first_plan.pair if first_plan else pair)
    if route == "handed_over" and _is_one_token(assignment, times, tokens):
        route = "prefill_only"
    # One dict and one row: each row costs the event loop a little.
    known: dict[str, Any] = {}
    if times.ttft_s:
        known |= _until_first_token(times)
    if len(came_s) > 1:
        known |= _of_tokens(times, came_s, itl, tokens)
    if times.committed_s is not None and times.offered_s is not None:
        known |= _of_transfer(times, times.offered_s, times.committed_s)
    if times.retired is not None:
        known |= _of_steps(times.retired)
    if times.left_share_s:
        known["share_s"] = known.get("share_s", 0.0) + times.left_share_s
    if times.left_prefill_share_s:
        known["prefill_share_s"] = known.get("prefill_share_s", 0.0) + times.left_prefill_share_s
    if times.losses or first_plan is None:
        marks = _marks(times, assignment, first_plan, came_s, ended_s)
        known |= _of_failovers(times, marks, known.get("ttft_s"), known.get("ttlt_s"))
    return ChoiceRow(
        choice=choice,
        route=route,
        prefill_replica=times.prefilled_by or pair.prefill.id,
        decode_replica="" if route == "prefill_only" else pair.decode.id,
        cached_tokens=times.cached_tokens,
        completion_tokens=tokens,
        predicted_ttft_s=forecast.ttft_s if forecast and forecast.learned else None,
        admitted_s=max(0.0, assignment.assigned_s - times.began_s),
        ttfmt_s=ttfmt_s,
        decode_s=None if times.retired is None else times.decode_s,
        decoded_s=None if times.decoded_s is None else times.decoded_s - times.began_s,
        preemptions=times.preemptions,
        retries=times.retries,
        **known,
    )


def ended_elsewhere(
    choice: int,
    times: StageTimes,
    came_s: Sequence[float],
    tokens: int,
    decode_replica: str,
    adopted_s: float,
) -> ChoiceRow:
    """The row of a choice whose last token another router passed on, before `adopted_s`."""
    known = _until_first_token(times)
    if len(came_s) > 1:
        known |= _of_tokens(times, came_s, StreamItl.of(came_s), tokens)
    return ChoiceRow(
        choice=choice,
        route=times.route or "local",
        prefill_replica=times.prefilled_by,
        decode_replica=decode_replica,
        cached_tokens=times.cached_tokens,
        completion_tokens=tokens,
        admitted_s=adopted_s - times.began_s,
        **known,
    )


def _route(pair: Pair) -> Route:
    if pair.prefill_only:
        return "prefill_only"
    return "local" if pair.local else "handed_over"


def _is_one_token(assignment: Assignment, times: StageTimes, tokens: int) -> bool:
    """Whether prefill makes the whole answer, so that nothing was to be handed over."""
    request = assignment.request
    return tokens <= 1 and not times.losses and request.most_tokens == request.prompt_tokens


def _until_first_token(times: StageTimes) -> dict[str, Any]:
    return {
        "sent_s": None if times.sent_s is None else times.sent_s - times.began_s,
        "queue_s": times.queue_s,
        "prefill_s": times.prefill_s,
        "prefill_share_s": times.prefill_share_s,
        "first_flush_s": times.first_flush_s,
        "ttft_s": times.ttft_s,
        "ttlt_s": times.ttft_s,
    }


def _of_tokens(
    times: StageTimes, came_s: Sequence[float], itl: StreamItl, tokens: int
) -> dict[str, Any]:
    streaming_s = came_s[-1] - came_s[0]
    return {
        "ttlt_s": came_s[-1] - times.began_s,
        "itl_p50_s": itl.p50_s,
        "itl_p95_s": itl.p95_s,
        "longest_stall_s": itl.longest_s,
        "tokens_per_s": (tokens - 1) / streaming_s if streaming_s > 0 else None,
    }


def _of_transfer(times: StageTimes, offered_s: float, committed_s: float) -> dict[str, Any]:
    offered_s -= times.began_s
    return {
        "offered_s": offered_s,
        "decode_admitted_s": offered_s + times.admission_s,
        "transfer_begin_s": offered_s + times.admission_s,
        "transfer_end_s": committed_s - times.began_s,
        "decode_admission_s": times.admission_s,
        "decode_waited_for": times.decode_waited_for or None,
        "transfer_exposed_s": times.transfer_s,
        "transfer_bytes": times.transfer_bytes,
    }


def _marks(
    times: StageTimes,
    assignment: Assignment,
    first_plan: PlacementPlan | None,
    came_s: Sequence[float],
    ended_s: float,
) -> ChoiceMarks:
    return ChoiceMarks(
        times.began_s,
        came_s,
        times.began_s + times.ttft_s if times.ttft_s else None,
        times.sent_s,
        times.committed_s,
        ended_s,
        waits_for_kv=first_plan is not None and _route(first_plan.pair) == "handed_over",
        adopted_s=assignment.assigned_s if first_plan is None else None,
        stopped_s=times.stopped_s,
    )


def _of_failovers(
    times: StageTimes, marks: ChoiceMarks, ttft_s: float | None, ttlt_s: float | None
) -> dict[str, Any]:
    """The failovers; those between two tokens are the pause."""
    spans = failover_spans(times.losses, marks)
    pauses = []
    if ttft_s is not None and ttlt_s is not None:
        pauses = [one for one in spans if one.begin_s >= ttft_s and one.end_s <= ttlt_s]
    return {
        "failovers": len(spans),
        "failover_spans": spans,
        "failover_pause_s": sum(one.end_s - one.begin_s for one in pauses),
    }


def _of_steps(retired: Retired) -> dict[str, Any]:
    steps, stepping_s = retired.steps, retired.stepping_s
    return {
        "scheduler_tokens_per_s": steps / stepping_s if stepping_s > 0 else None,
        "mean_batch": retired.mean_batch or None,
        "straggler_share": retired.straggler_steps / steps if steps else None,
        "share_s": retired.share_s,
        "recomputed_tokens": retired.recomputed_tokens,
    }
