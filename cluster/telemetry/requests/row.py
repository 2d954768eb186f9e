"""The row of a request that ended. It has no prompt and no answer, unless the operator wants them.

Times are in seconds since the request arrived, on the clock of its router. None stands for what is
not known, or was not reached.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from cluster.telemetry.requests.stages import FailoverSpan, stage_faults, stage_marks

# How a choice gets its KV: from prefill by a transfer, from decode itself, or it needs none.
Route = Literal["handed_over", "local", "prefill_only"]
# The outcome of a request that has none yet.
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One choice of a request.

    - `admitted_s`: the router assigned it to replicas. `sent_s`: the replica that computes its
      prompt was asked, for the last time.
    - `queue_s` + `prefill_s` + `first_flush_s` = `ttft_s`. `ttfmt_s` is the first meaningful token,
      `ttlt_s` the last token.
    - `offered_s`, `decode_admitted_s`, `transfer_begin_s`, `transfer_end_s`: the KV was on offer,
      decode had blocks for it, and the transfer; they may overlap the prefill.
    - `decode_s`: of the last decode replica, up to its last token, which it had at `decoded_s`.
    - `itl_p50_s`, `itl_p95_s`, `longest_stall_s`: of its ITL, between two events with tokens.
    - `tokens_per_s`: as the client saw it. `scheduler_tokens_per_s`: in the decode steps alone.
    - `mean_batch`: the requests in a step. `straggler_share`: the part of the steps in which it had
      the most tokens.
    - `failovers`: lost replicas, and a lost router; `failover_spans`: when. `failover_pause_s`:
      between the tokens around them. `retries`: full replicas that refused it after a loss.
    - `recomputed_tokens`: tokens that decode computed though they had had KV.
    - `transfer_exposed_s`: the transfer, less what was moved while the prompt was computed.
    - `decode_waited_for`: what the offered KV waited for at decode (`decode_pool/entry.py`).
    - `prefill_share_s`: seconds of the passes over its prompt, each shared by its prompts' tokens.
      `share_s`: seconds of decode steps, each divided by the requests in it, less those of a
      replica that was lost. Of a cancelled choice it is known once its replicas are free.
    """

    choice: int
    route: Route
    prefill_replica: str = ""
    decode_replica: str = ""
    cached_tokens: int = 0
    completion_tokens: int = 0
    predicted_ttft_s: float | None = None
    admitted_s: float | None = None
    sent_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    prefill_share_s: float | None = None
    first_flush_s: float | None = None
    ttft_s: float | None = None
    ttfmt_s: float | None = None
    ttlt_s: float | None = None
    offered_s: float | None = None
    decode_admitted_s: float | None = None
    transfer_begin_s: float | None = None
    transfer_end_s: float | None = None
    decode_admission_s: float | None = None
    decode_waited_for: str | None = None
    transfer_exposed_s: float | None = None
    transfer_bytes: int | None = None
    decode_s: float | None = None
    decoded_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    longest_stall_s: float | None = None
    tokens_per_s: float | None = None
    scheduler_tokens_per_s: float | None = None
    mean_batch: float | None = None
    straggler_share: float | None = None
    share_s: float | None = None
    preemptions: int = 0
    failovers: int = 0
    failover_spans: tuple[FailoverSpan, ...] = ()
    failover_pause_s: float = 0.0
    retries: int = 0
    recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestRow:
    """The outcome of a request: how it came in, how it ended, and its times by stage.

    `config` is the version of the configuration that served it (`cluster/config/version.py`), `arm`
    is `stable` or `canary`, where the endpoint has a canary. `received_at` is in seconds since the
    epoch, and `total_s` the time from there to the end.

    In the router's queue it waited for `queued_s`. `waited_for` is the last reason
    (`docs/reference/refusals.md`); where it `stood_behind` others, it is what these waited for.
    `queued_before` are the requests before it when it came. `reason` is the message that the client
    got with an error. `refused_for` is the kind of a refusal, and `retry_after_s` the
    time that it named. `decided_s` goes from arrival to the decision to refuse. `time_to_cancel_s`
    goes from the end to the last replica that freed its blocks. `cost` is in the currency of the
    configured prices. `x_request_id` and `traceparent` are the client's own ids
    (`cluster/api/tracing.py`).
    """

    request_id: str
    endpoint: str
    config: str
    outcome: str
    tenant: str = ""
    lane: str = ""
    arm: str | None = None
    received_at: float = 0.0
    total_s: float | None = None
    reason: str | None = None
    refused_for: str | None = None
    retry_after_s: float | None = None
    decided_s: float | None = None
    waited_for: str | None = None
    stood_behind: bool | None = None
    queued_s: float | None = None
    queued_before: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    time_to_cancel_s: float | None = None
    cost: float | None = None
    x_request_id: str | None = None
    traceparent: str | None = None
    prompt: str | None = None
    answer: str | None = None
    choices: tuple[ChoiceRow, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than well."""
        return self.outcome != "ok"

    @property
    def slowest(self) -> ChoiceRow | None:
        """The choice whose first token came last; the first one where no token came."""
        return max(self.choices, key=lambda one: one.ttft_s or 0.0, default=None)

    @property
    def ttft_s(self) -> float | None:
        """The longest TTFT of its choices."""
        return None if self.slowest is None else self.slowest.ttft_s

    @property
    def ttlt_s(self) -> float | None:
        """The time to the last token of all its choices."""
        return max((one.ttlt_s for one in self.choices if one.ttlt_s is not None), default=None)


_REQUEST_FIELDS = tuple(one.name for one in fields(RequestRow) if one.name != "choices")
# A list of a thousand rows has no texts, whatever the operator wants.
_BRIEF_FIELDS = tuple(name for name in _REQUEST_FIELDS if name not in ("prompt", "answer"))
_CHOICE_FIELDS = tuple(one.name for one in fields(ChoiceRow))
# Where both have a field, the value of the request counts.
_OF_ONE = tuple(name for name in _CHOICE_FIELDS if name not in (*_REQUEST_FIELDS, "choice"))


def brief(row: RequestRow) -> dict[str, Any]:
    """What is known of a request, and of its slowest choice, by name; without texts.

    `ttlt_s` is that of the last token of all choices.
    """
    found = _known(row, _BRIEF_FIELDS)
    if row.slowest is not None:
        found |= _known(row.slowest, _OF_ONE)
    if row.ttlt_s is not None:
        found["ttlt_s"] = round(row.ttlt_s, 6)
    return found


def with_choices(row: RequestRow) -> dict[str, Any]:
    """As `brief`, and all that is known of each choice of a request that has several."""
    if len(row.choices) < 2:
        return brief(row)
    return brief(row) | {"choices": [_known(one, _CHOICE_FIELDS) for one in row.choices]}


def whole(row: RequestRow) -> dict[str, Any]:
    """What is known of a request, and of each choice with its stages, by name."""
    choices = []
    for choice in row.choices:
        stages = [
            {"stage": one.stage, "begin_s": round(one.begin_s, 6), "end_s": round(one.end_s, 6)}
            for one in stage_marks(choice)
        ]
        choices.append(_known(choice, _CHOICE_FIELDS) | {"stages": stages})
    return _known(row, _REQUEST_FIELDS) | {"choices": choices}


def faults_of(row: RequestRow) -> list[str]:
    """Where the stages of a choice are no whole, within 1 %; see `stage_faults`.

    They do not add up to TTFT or TTLT, have gaps or overlaps between them, or one ends before it
    begins. Or more of a transfer is exposed than it took.

    A sound row has no fault. A measure that counts something twice causes one.
    """
    return [
        f"{row.request_id}.{choice.choice}: {fault}"
        for choice in row.choices
        for fault in stage_faults(choice)
    ]


def _known(one: RequestRow | ChoiceRow, names: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for name in names:
        value = getattr(one, name)
        if name == "failover_spans":
            value = [_rounded(asdict(span)) for span in value] or None
        if value is not None and value != "":
            found[name] = round(value, 6) if isinstance(value, float) else value
    return found


def _rounded(fields_of: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in fields_of.items()
    }
