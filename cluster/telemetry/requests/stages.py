"""The stages of a choice, one behind the other, from the arrival of its request to its last token.

    admission ▸ failover ▸ prefill_queue ▸ prefill ▸ first_flush │ TTFT
        │ offer ▸ decode_admission ▸ transfer ▸ failover ▸ decode ▸ last_flush │ TTLT

They are times on the router's clock, in which the replicas' own measures have their places. What a
transfer does while its prompt is computed is part of `prefill`. Behind the first
token a choice has only the stages that delayed its second token. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.api import StageTime

if TYPE_CHECKING:
    from cluster.telemetry.requests.row import ChoiceRow

_MOST_ERROR = 0.01
# Of a time that is shorter than the clock's own error.
_LEAST_ERROR_S = 1e-4


def stages_of(choice: ChoiceRow) -> tuple[StageTime, ...]:
    """The stages that a choice went through; none where it was not admitted.

    A choice that got no token has only the stages that are known.
    """
    first = _until_first(choice)
    spans, at_s = [], 0.0
    for stage, seconds in (*first, *_behind_first(choice)):
        if seconds:
            spans.append(StageTime(stage, at_s, at_s + seconds))
            at_s += seconds
    return tuple(spans)


def _until_first(choice: ChoiceRow) -> list[tuple[str, float]]:
    admitted_s = choice.admitted_s
    if admitted_s is None:
        return []
    queue_s, prefill_s, ttft_s = choice.queue_s, choice.prefill_s, choice.ttft_s
    if ttft_s is None or queue_s is None or prefill_s is None:
        return [("admission", admitted_s)]
    # A choice that another router had was admitted here after its first token.
    admission_s = min(admitted_s, queue_s)
    sent_s = min(max(admission_s, choice.sent_s or 0.0), queue_s)
    lost_s = sent_s - admission_s if choice.failovers else 0.0
    return [
        ("admission", admission_s),
        ("failover", lost_s),
        ("prefill_queue", queue_s - admission_s - lost_s),
        ("prefill", prefill_s),
        ("first_flush", ttft_s - queue_s - prefill_s),
    ]


def _behind_first(choice: ChoiceRow) -> list[tuple[str, float]]:
    ttft_s, ttlt_s = choice.ttft_s, choice.ttlt_s
    if ttft_s is None or ttlt_s is None or ttlt_s <= ttft_s:
        return []
    rest_s, waited_s = ttlt_s - ttft_s, 0.0
    if choice.transfer_end_s is not None:
        waited_s = min(max(0.0, choice.transfer_end_s - ttft_s), rest_s)
    transfer_s = min(choice.transfer_exposed_s or 0.0, waited_s)
    admission_s = min(choice.decode_admission_s or 0.0, waited_s - transfer_s)
    pause_s = min(choice.failover_pause_s, rest_s - waited_s)
    left_s = rest_s - waited_s - pause_s
    decode_s = left_s if choice.decode_s is None or choice.failovers else choice.decode_s
    # Decode may begin on its way to the router, but not before the prompt is computed.
    if decode_s <= rest_s + max(0.0, choice.first_flush_s or 0.0) + _LEAST_ERROR_S:
        decode_s = min(decode_s, left_s)
    return [
        ("offer", waited_s - transfer_s - admission_s),
        ("decode_admission", admission_s),
        ("transfer", transfer_s),
        ("failover", pause_s),
        ("decode", decode_s),
        ("last_flush", max(0.0, left_s - decode_s)),
    ]


def stage_faults(choice: ChoiceRow) -> list[str]:
    """Where the stages do not add up to TTFT or TTLT within 1 %, or one takes less than no time."""
    first, behind = _until_first(choice), _behind_first(choice)
    faults = []
    wholes = [("TTFT", choice.ttft_s, first)] if first else []
    wholes += [("TTLT", choice.ttlt_s, [*first, *behind])] if behind else []
    for name, whole_s, stages in wholes:
        if whole_s is None:
            continue
        error_s = max(_LEAST_ERROR_S, _MOST_ERROR * whole_s)
        sum_s = sum(seconds for _, seconds in stages)
        if abs(sum_s - whole_s) > error_s:
            faults.append(f"the stages sum to {sum_s:.6f} s, and {name} is {whole_s:.6f} s")
        for stage, seconds in stages:
            if seconds < -error_s:
                faults.append(f"{stage} takes {seconds:.6f} s of a {name} of {whole_s:.6f} s")
    return faults
