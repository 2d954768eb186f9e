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
    """One choice of a request. A moment is in seconds since the request arrived."""

    choice: int
    """The number of the choice; the first one has 0."""
    route: Route
    """`handed_over`: decode got its KV from prefill. `local`: decode computed the prompt.
    `prefill_only`: prefill made the whole answer."""
    prefill_replica: str = ""
    """The replica that computed its prompt."""
    decode_replica: str = ""
    """The last replica that generated; none with `prefill_only`."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed."""
    completion_tokens: int = 0
    """Its tokens so far."""
    predicted_ttft_s: float | None = None
    """The TTFT that admission predicted, if it had learned."""
    admitted_s: float | None = None
    """The router assigned it to replicas."""
    sent_s: float | None = None
    """The replica that computes its prompt was asked, for the last time."""
    queue_s: float | None = None
    """Its prompt began to be computed; `queue_s` + `prefill_s` + `first_flush_s` = `ttft_s`."""
    prefill_s: float | None = None
    """The time from `queue_s` to the sampled first token."""
    prefill_share_s: float | None = None
    """Its part of the time of its passes; the prompts of a pass share it by their tokens. Of a
    choice that was cancelled before its first token it is known once its replicas are free."""
    first_flush_s: float | None = None
    """The time from the sampled first token to the router."""
    ttft_s: float | None = None
    """The first token."""
    ttfmt_s: float | None = None
    """The first meaningful token."""
    ttlt_s: float | None = None
    """The last token."""
    running_s: float | None = None
    """The present, of a choice that runs; its last stage goes on."""
    offered_s: float | None = None
    """Its KV was on offer; this and the transfer may overlap the prefill."""
    decode_admitted_s: float | None = None
    """Decode had blocks for its KV."""
    transfer_begin_s: float | None = None
    """The transfer of its KV began."""
    transfer_end_s: float | None = None
    """The transfer of its KV ended."""
    decode_admission_s: float | None = None
    """The time from the offer of its KV until decode had blocks for it."""
    decode_waited_for: str | None = None
    """What the offered KV waited for at decode (`decode_pool/entry.py`)."""
    transfer_exposed_s: float | None = None
    """The time of the transfer, less what was moved while the prompt was computed."""
    transfer_bytes: int | None = None
    """The size of its KV."""
    decode_s: float | None = None
    """The time on the last decode replica, up to its last token."""
    decoded_s: float | None = None
    """The last decode replica had its last token."""
    itl_p50_s: float | None = None
    """The median of its ITL, between two events with tokens."""
    itl_p95_s: float | None = None
    """The p95 of its ITL."""
    longest_stall_s: float | None = None
    """The longest ITL."""
    tokens_per_s: float | None = None
    """Its tokens per second, as the client saw them."""
    scheduler_tokens_per_s: float | None = None
    """Its tokens per second in the decode steps alone."""
    mean_batch: float | None = None
    """The requests in a decode step, in the mean."""
    straggler_share: float | None = None
    """The part of its steps in which it had the most tokens."""
    share_s: float | None = None
    """The time of its decode steps, each divided by the requests in it, less those of a
    replica that was lost. Of a cancelled choice it is known once its replicas are free."""
    preemptions: int = 0
    """How often it lost its KV blocks to requests before it."""
    failovers: int = 0
    """The replicas and routers that it lost."""
    failover_spans: tuple[FailoverSpan, ...] = ()
    """The begin and the end of each failover, and the replica that was lost."""
    failover_pause_s: float = 0.0
    """The time between the tokens around its failovers."""
    retries: int = 0
    """How often full replicas refused it after a loss."""
    recomputed_tokens: int = 0
    """The tokens that decode computed though they had had KV."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """The outcome of a request: how it came in, how it ended, and its times by stage."""

    request_id: str
    """The id of the request."""
    endpoint: str
    """Its endpoint."""
    config: str
    """The version of the configuration that served it."""
    outcome: str
    """`ok`, `running`, or the error with which it ended."""
    tenant: str = ""
    """The tenant for which it counts."""
    lane: str = ""
    """`interactive`, `streaming`, `scoring` or `batch`."""
    arm: str | None = None
    """`stable` or `canary`, where the endpoint has a canary."""
    received_at: float = 0.0
    """Its arrival, in seconds since the epoch."""
    total_s: float | None = None
    """The time from its arrival to its end."""
    reason: str | None = None
    """The message that the client got with an error."""
    refused_for: str | None = None
    """The kind of a refusal (`docs/reference/refusals.md`)."""
    retry_after_s: float | None = None
    """The time that a refusal named."""
    decided_s: float | None = None
    """The time from arrival to the decision to refuse."""
    waited_for: str | None = None
    """The last reason of its wait in the router's queue (`docs/reference/refusals.md`)."""
    stood_behind: bool | None = None
    """It stood behind other requests, and `waited_for` is their reason."""
    queued_s: float | None = None
    """The time in the router's queue."""
    queued_before: int | None = None
    """The requests before it in the queue when it came."""
    prompt_tokens: int | None = None
    """The tokens of its prompt."""
    completion_tokens: int | None = None
    """The tokens of all its choices."""
    time_to_cancel_s: float | None = None
    """The time from its end to the last replica that freed its blocks."""
    cost: float | None = None
    """Its cost in the currency of the configured prices."""
    x_request_id: str | None = None
    """The client's own id (`cluster/api/tracing.py`)."""
    traceparent: str | None = None
    """The client's own trace."""
    prompt: str | None = None
    """The text of the prompt, if the operator wants it."""
    answer: str | None = None
    """The text of the answer, if the operator wants it."""
    choices: tuple[ChoiceRow, ...] = ()
    """Its choices."""

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
