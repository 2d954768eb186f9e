"""The request log: one row for each request that ended, as a line of the log at level info.

… info cluster.telemetry.request_log request ended request_id=r-1 endpoint=chat config=3f9a1c02
outcome=ok …
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace

from cluster.api import Summary

log = logging.getLogger(__name__)

_STAGES = ("queue_s", "prefill_s", "first_flush_s", "ttft_s")


@dataclass(frozen=True, slots=True)
class RequestRow:
    """The outcome of a request: how it came in, how it ended, and its times by stage.

    `config` is the version of the configuration that served it (`cluster/config/version.py`), `arm`
    is `stable` or `canary`, where the endpoint has a canary.
    Times in seconds are those of the first choice, queue + prefill + first flush = ttft; None where
    the request did not get so far. `reason` is the message that the client got with an error, and
    `decided_s` the time from arrival to the decision to refuse the request. `x_request_id` and
    `traceparent` are the client's own ids (`cluster/api/tracing.py`).
    """

    request_id: str
    endpoint: str
    config: str
    outcome: str
    tenant: str = ""
    reason: str | None = None
    decided_s: float | None = None
    arm: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    first_flush_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    x_request_id: str | None = None
    traceparent: str | None = None

    def finished(self, summary: Summary) -> RequestRow:
        """The row with the times and counts of the summary."""
        row = replace(
            self,
            prompt_tokens=summary.prompt_tokens,
            completion_tokens=summary.completion_tokens,
            total_s=summary.total_s,
        )
        if not summary.choices:
            return row
        first = summary.choices[0]
        return replace(row, **{name: getattr(first, name) for name in _STAGES})


def write(row: RequestRow) -> None:
    """Log the row without its unknown fields."""
    if log.isEnabledFor(logging.INFO):
        known = {name: value for name, value in asdict(row).items() if value is not None}
        log.info("request ended", extra=known)
