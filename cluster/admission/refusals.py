"""Refusals as errors and, at a bounded rate, in the log."""

from __future__ import annotations

import logging
import math
from collections import Counter

from cluster.admission.policy import Reason, Refuse
from cluster.admission.refusal_reasons import REASONS
from engine.errors import (
    Cancelled,
    InvalidRequest,
    NotFound,
    Overloaded,
    TandemError,
    Unauthenticated,
)

log = logging.getLogger(__name__)

_LOG_EVERY_S = 5.0


class Refused(Overloaded):
    """Not admitted; `reason` says what stood in the way.

    `decided_s` is the time from the request's arrival to this decision, where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        reason: Reason = "ttft",
        decided_s: float | None = None,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason
        self.decided_s = decided_s

    @classmethod
    def by(cls, refusal: Refuse, decided_s: float) -> Refused:
        """What a refused client is told."""
        wait_s = refusal.retry_after_s
        message = f"no room now: {REASONS[refusal.reason].message}; try again in {wait_s:.1f} s"
        reason = refusal.reason
        return cls(message, retry_after_s=wait_s, reason=reason, decided_s=decided_s)


class RefusalLog:
    """Tells of refusals by reason: a line in the log at the first, then at most every 5 s."""

    def __init__(self) -> None:
        self._since: Counter[str] = Counter()
        self._logged_s = -math.inf

    def note(self, refusal: Refuse, now: float) -> None:
        """A request was refused."""
        self._since[refusal.reason] += 1
        if now - self._logged_s < _LOG_EVERY_S:
            return
        log.warning(
            "requests are refused",
            extra={**self._since, "retry_after_s": round(refusal.retry_after_s, 3)},
        )
        self._since.clear()
        self._logged_s = now


def is_fault(error: TandemError) -> bool:
    """Whether a request that ended so failed by no fault and no cap of its client.

    Nor because the pool slept, which is told in time and is no worse for one way of serving.
    """
    if isinstance(error, Refused):
        return error.reason != "starting" and not error.reason.startswith("tenant_")
    return not isinstance(error, InvalidRequest | NotFound | Unauthenticated | Cancelled)
