"""The spans of a request: one for each stage of each choice, beside each other. Pure.

    request ├─ admission ├─ prefill_queue ├─ prefill ├─ first_flush ├─ transfer ├─ decode …

Each lost replica has a failover of its own, with a link to the stage that it broke off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.stages import StageMark, stage_marks

Value = str | int | float | bool

# Bound: choices of one request that have spans.
MOST_CHOICES = 16


@dataclass(frozen=True, slots=True)
class StageSpan:
    """One stage of a choice, in seconds since the request arrived.

    `breaks_off` is the place, in the list of the request's spans, of the stage that a failover
    ended.
    """

    name: str
    begin_s: float
    end_s: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    breaks_off: int | None = None


def stage_spans(row: RequestRow) -> list[StageSpan]:
    """The spans of a request that ended, choice by choice, each in the order of its stages."""
    spans: list[StageSpan] = []
    for choice in row.choices[:MOST_CHOICES]:
        first, marks = len(spans), stage_marks(choice)
        last = max((at for at, one in enumerate(marks) if one.stage == "decode"), default=-1)
        for at, stage in enumerate(marks):
            broken = len(spans) - 1 if stage.stage == "failover" and len(spans) > first else None
            attributes = _of_stage(choice, stage)
            if at == last:
                attributes |= _of_decode(choice)
            spans.append(StageSpan(stage.stage, stage.begin_s, stage.end_s, attributes, broken))
    return spans


def request_attributes(row: RequestRow) -> dict[str, Value]:
    """What the request's own span says; no prompt, no answer, no unknown value."""
    known: dict[str, Value | None] = {
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": row.completion_tokens,
        "tandem.request_id": row.request_id,
        "tandem.endpoint": row.endpoint,
        "tandem.tenant": row.tenant or None,
        "tandem.lane": row.lane or None,
        "tandem.config": row.config,
        "tandem.arm": row.arm,
        "tandem.outcome": row.outcome,
        "tandem.refused_for": row.refused_for,
        "tandem.retry_after_s": row.retry_after_s,
        "tandem.waited_for": row.waited_for,
        "tandem.ttft_s": row.ttft_s,
    }
    return {name: value for name, value in known.items() if value is not None}


def _of_stage(choice: ChoiceRow, mark: StageMark) -> dict[str, Value]:
    """The attributes of a span; the replica of a failover is the one that was lost."""
    stage, found = mark.stage, dict[str, Value]({"tandem.choice": choice.choice})
    if mark.replica:
        found["tandem.replica"] = mark.replica
    if stage == "prefill":
        found["tandem.cached_tokens"] = choice.cached_tokens
    elif stage == "transfer" and choice.transfer_bytes is not None:
        found["tandem.transfer_bytes"] = choice.transfer_bytes
    elif stage == "failover":
        found["tandem.failovers"] = choice.failovers
    return found


def _of_decode(choice: ChoiceRow) -> dict[str, Value]:
    """What the choice had in all, told once, at its last stretch of decode."""
    found = dict[str, Value]({"tandem.completion_tokens": choice.completion_tokens})
    found["tandem.preemptions"] = choice.preemptions
    if choice.mean_batch is not None:
        found["tandem.mean_batch"] = choice.mean_batch
    return found
