"""Counts the outcome of each request.

Every request ends here, also a request that never began: in the metrics, in the
statistics of its endpoint's canary, and as one row of the request log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.admission.assignment import QueueWait
from cluster.admission.refusals import Refused, is_fault
from cluster.api import GenerateRequest, Summary
from cluster.api.tracing import NO_TRACE, Trace
from cluster.router.canary.routing import CanaryRoute, CanaryRouting
from cluster.router.stream_metrics import StreamMetrics
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.labels import Labels, RequestLabels
from cluster.telemetry.request_log import RequestLog
from cluster.telemetry.requests.row import RUNNING, ChoiceRow, RequestRow
from cluster.telemetry.requests.row_clock import EPOCH_S
from cluster.telemetry.requests.row_metrics import count_row
from engine.errors import Overloaded, TandemError
from protos.status import one_line

if TYPE_CHECKING:
    from cluster.telemetry.traces.span_messages import RequestSpan

log = logging.getLogger(__name__)

# Bound: tokens of a prompt and of an answer in a row.
_SHOWN_TOKENS = 1024


@dataclass(slots=True)
class RequestAccount:
    """One request: the tenant it counts for, its route, and when it arrived (monotonic).

    `ttft_s` is the time to the first token of its first choice that has one. `streams` are those of
    its admitted choices, and `first_output` the tokens of the first one. With `timing` its client
    gets the stages of each choice. `span` is that of its trace. `ended_elsewhere` are choices whose
    last token another router passed on.
    """

    request_id: str
    tenant: str
    labels: Labels
    route: CanaryRoute
    began_s: float = field(default_factory=time.monotonic)
    ttft_s: float | None = None
    trace: Trace = NO_TRACE
    timing: bool = False
    span: RequestSpan | None = None
    prompt_ids: Sequence[int] | None = None
    first_output: Sequence[int] = ()
    wait: QueueWait = field(default_factory=QueueWait)
    streams: list[StreamMetrics] = field(default_factory=list)
    ended_elsewhere: list[ChoiceRow] = field(default_factory=list)

    @property
    def traceparent(self) -> str:
        """What names the request to traces of replicas; empty where nobody traces it."""
        return self.trace.parent if self.span is None else self.span.traceparent

    def first_token(self, ttft_s: float) -> None:
        """Note the first token of the request; first tokens of further choices are ignored."""
        if self.ttft_s is None:
            self.ttft_s = ttft_s


class RequestAccounting:
    """Opens an account for each request, and closes it with the outcome of the request.

    `endpoint_of` names the endpoint that a request goes to, configured or not. `cost_of` is the
    cost of choices, and `text_of` the text of tokens; without them rows have no cost and no text.
    """

    def __init__(
        self,
        labels: RequestLabels,
        canaries: CanaryRouting,
        endpoint_of: Callable[[GenerateRequest], str],
        log: RequestLog | None = None,
        cost_of: Callable[[Iterable[ChoiceRow]], float] | None = None,
        text_of: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        self._cost_of = cost_of
        self._text_of = text_of
        self.log = log or RequestLog()
        self._labels = labels
        self._canaries = canaries
        self._endpoint_of = endpoint_of

    def open(self, request: GenerateRequest, request_id: str, tenant: str) -> RequestAccount:
        """The account of a new request, which counts for `tenant`."""
        labels = self._labels.of(request, tenant)
        route = self._canaries.route(self._endpoint_of(request), tenant, request_id)
        began_s = time.monotonic() if request.arrived_s is None else request.arrived_s
        trace, timing = request.trace, request.timing
        span = self.log.begin(trace.parent)
        return RequestAccount(
            request_id, tenant, labels, route, began_s, trace=trace, timing=timing, span=span
        )

    def not_begun(self, account: RequestAccount, error: TandemError) -> None:
        """Count a request that never began. It belongs to no arm of a canary."""
        outcome = type(error).__name__
        metrics.REQUESTS.inc(outcome=outcome, **account.labels)
        account.route = replace(account.route, arm=None)
        self._write(account, outcome, error)

    def ended(self, account: RequestAccount, outcome: str, last: Summary | TandemError) -> None:
        """Count a request that has ended with its summary or with an error."""
        labels = account.labels
        if isinstance(last, Summary):
            metrics.TOTAL.observe(last.total_s, **labels)
        elif isinstance(last, Overloaded):
            reason = last.reason if isinstance(last, Refused) else "replica_full"
            metrics.REFUSED.inc(reason=reason, **labels)
        metrics.REQUESTS.inc(outcome=outcome, **labels)
        self._judge(account, outcome, last)
        self._write(account, outcome, last)

    def _write(self, account: RequestAccount, outcome: str, last: Summary | TandemError) -> None:
        """Give the request's row to the log. A fault in it takes no answer from a client."""
        try:
            self._log_row(account, outcome, last)
        except Exception:
            log.exception("a row was not made", extra={"request_id": account.request_id})

    def _log_row(self, account: RequestAccount, outcome: str, last: Summary | TandemError) -> None:
        texts: dict[str, str] = {}
        if self._text_of is not None:
            texts["prompt"] = self._text_of((account.prompt_ids or ())[:_SHOWN_TOKENS])
            texts["answer"] = self._text_of(account.first_output[:_SHOWN_TOKENS])
        row = _row(account, outcome, last, **texts)
        if self._cost_of is not None:
            row = replace(row, cost=self._cost_of(row.choices))
        number = self.log.add(row, account.span)
        count_row(row, account.labels["endpoint"])
        if not isinstance(last, Summary):
            # The replicas tell later that they have freed its blocks.
            for stream in account.streams:
                stream.times.on_vacated = partial(self._vacated, number, stream)

    def _vacated(self, number: int, stream: StreamMetrics, seconds: float) -> None:
        """Note when the replicas of an abandoned choice were free, and what their work costs."""
        self.log.vacated(number, seconds)
        row, late = self.log.store.get(number), stream.row()
        if row is None or not (late.share_s or late.prefill_share_s):
            return
        choices = tuple(late if one.choice == late.choice else one for one in row.choices)
        cost = row.cost if self._cost_of is None else self._cost_of(choices)
        self.log.store.exchange(number, replace(row, choices=choices, cost=cost))

    def _judge(self, account: RequestAccount, outcome: str, last: Summary | TandemError) -> None:
        """Tell the canary's judge. A cancelled request without a token counts with its wait."""
        ttft_s = account.ttft_s
        if ttft_s is None and outcome == "cancelled":
            ttft_s = time.monotonic() - account.began_s
        failed = isinstance(last, TandemError) and is_fault(last)
        self._canaries.ended(account.route, outcome, ttft_s, failed=failed)


def running_row(account: RequestAccount) -> RequestRow:
    """The row of a request that runs, as far as it came: it has no `total_s`."""
    wait = account.wait
    wait.look()
    return RequestRow(
        account.request_id,
        account.route.endpoint,
        account.route.config,
        RUNNING,
        account.tenant,
        account.labels["lane"],
        received_at=account.began_s + EPOCH_S,
        waited_for=wait.reason,
        stood_behind=wait.stood_behind or None,
        # Until it is admitted, the wait is not over.
        queued_s=wait.seconds if account.streams else None,
        queued_before=wait.queued_before,
        prompt_tokens=None if account.prompt_ids is None else len(account.prompt_ids),
        completion_tokens=sum(stream.count for stream in account.streams),
        choices=tuple(stream.so_far() for stream in account.streams),
    )


def _row(
    account: RequestAccount, outcome: str, last: Summary | TandemError, **more: Any
) -> RequestRow:
    route, wait = account.route, account.wait
    choices = tuple(
        sorted(
            (*account.ended_elsewhere, *(stream.row() for stream in account.streams)),
            key=lambda one: one.choice,
        )
    )
    if isinstance(last, TandemError):
        more |= _of_error(last)
        total_s = time.monotonic() - account.began_s
        tokens = sum(one.completion_tokens for one in choices) if choices else None
    else:
        tokens, total_s = last.completion_tokens, last.total_s
    return RequestRow(
        account.request_id,
        route.endpoint,
        route.config,
        outcome,
        account.tenant,
        account.labels["lane"],
        route.arm,
        received_at=account.began_s + EPOCH_S,
        total_s=total_s,
        waited_for=wait.reason,
        stood_behind=wait.stood_behind or None,
        queued_s=wait.seconds,
        queued_before=wait.queued_before,
        prompt_tokens=None if account.prompt_ids is None else len(account.prompt_ids),
        completion_tokens=tokens,
        x_request_id=account.trace.request_id or None,
        traceparent=account.trace.parent or None,
        choices=choices,
        **more,
    )


def _of_error(error: TandemError) -> dict[str, Any]:
    known = {"reason": one_line(error.message), "retry_after_s": error.retry_after_s}
    if isinstance(error, Refused):
        known |= {"refused_for": error.reason, "decided_s": error.decided_s}
    return known
