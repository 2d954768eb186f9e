"""Counts the outcome of each request.

Every request ends here, also a request that the router turned away: in the metrics, in the
statistics of its endpoint's canary, and as one row of the request log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cluster.admission.refusals import Refused, is_fault
from cluster.api import GenerateRequest, Summary
from cluster.api.tracing import NO_TRACE, Trace
from cluster.router.canary.routing import CanaryRoute, CanaryRouting
from cluster.telemetry import request_log
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.labels import Labels, RequestLabels
from engine.errors import Overloaded, TandemError
from protos.status import one_line


@dataclass(slots=True)
class RequestAccount:
    """One request: the tenant it counts for, its route, and when it arrived (monotonic).

    `ttft_s` is the time to the first token of its first choice that has one.
    """

    request_id: str
    tenant: str
    labels: Labels
    route: CanaryRoute
    began_s: float = field(default_factory=time.monotonic)
    ttft_s: float | None = None
    trace: Trace = NO_TRACE

    def first_token(self, ttft_s: float) -> None:
        """Note the first token of the request; first tokens of further choices are ignored."""
        if self.ttft_s is None:
            self.ttft_s = ttft_s


class RequestAccounting:
    """Opens an account for each request, and closes it with the outcome of the request.

    `endpoint_of` names the endpoint that a request goes to, configured or not.
    """

    def __init__(
        self,
        labels: RequestLabels,
        canaries: CanaryRouting,
        endpoint_of: Callable[[GenerateRequest], str],
    ) -> None:
        self._labels = labels
        self._canaries = canaries
        self._endpoint_of = endpoint_of

    def open(self, request: GenerateRequest, request_id: str, tenant: str) -> RequestAccount:
        """The account of a new request, which counts for `tenant`."""
        labels = self._labels.of(request, tenant)
        route = self._canaries.route(self._endpoint_of(request), tenant, request_id)
        began_s = time.monotonic() if request.arrived_s is None else request.arrived_s
        return RequestAccount(request_id, tenant, labels, route, began_s, trace=request.trace)

    def turned_away(self, account: RequestAccount, error: TandemError) -> None:
        """Count a request that never began. It belongs to no arm of a canary."""
        outcome = type(error).__name__
        metrics.REQUESTS.inc(outcome=outcome, **account.labels)
        account.route = replace(account.route, arm=None)
        request_log.write(_row(account, outcome, error))

    def ended(self, account: RequestAccount, outcome: str, last: Summary | TandemError) -> None:
        """Count a request that has ended with its summary or with an error."""
        labels, row = account.labels, _row(account, outcome, last)
        if isinstance(last, Summary):
            metrics.TOTAL.observe(last.total_s, **labels)
            row = row.finished(last)
        elif isinstance(last, Overloaded):
            reason = last.reason if isinstance(last, Refused) else "replica_full"
            metrics.REFUSED.inc(reason=reason, **labels)
        metrics.REQUESTS.inc(outcome=outcome, **labels)
        self._judge(account, outcome, last)
        request_log.write(row)

    def _judge(self, account: RequestAccount, outcome: str, last: Summary | TandemError) -> None:
        """Tell the canary's judge. A cancelled request without a token counts with its wait."""
        ttft_s = account.ttft_s
        if ttft_s is None and outcome == "cancelled":
            ttft_s = time.monotonic() - account.began_s
        failed = isinstance(last, TandemError) and is_fault(last)
        self._canaries.ended(account.route, outcome, ttft_s, failed=failed)


def _row(
    account: RequestAccount, outcome: str, last: Summary | TandemError
) -> request_log.RequestRow:
    route = account.route
    return request_log.RequestRow(
        account.request_id,
        route.endpoint,
        route.config,
        outcome,
        account.tenant,
        reason=one_line(last.message) if isinstance(last, TandemError) else None,
        decided_s=last.decided_s if isinstance(last, Refused) else None,
        arm=route.arm,
        x_request_id=account.trace.request_id or None,
        traceparent=account.trace.parent or None,
    )
