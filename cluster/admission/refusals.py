"""Refusals as errors and, at a bounded rate, in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cluster.admission.policy import Reason, Refuse
from cluster.admission.refusal_reasons import REASONS
from engine.errors import (
    AlreadyRunning,
    Cancelled,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    TandemError,
    Unauthenticated,
)
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

# Bound: the least time between two lines about refusals.
_LOG_EVERY_S = 5.0
_OF_THE_CLIENT = (
    *(InvalidRequest, AlreadyRunning, NotFound, Unauthenticated, PermissionDenied, Cancelled),
)


class Refused(Overloaded):
    """A request was refused for that `reason`.

    `decided_s` are the seconds from the request's arrival to this decision, if they are known.
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
        """The error that a refused client gets."""
        wait_s = refusal.retry_after_s
        message = f"no capacity now: {REASONS[refusal.reason].message}; try again in {wait_s:.1f} s"
        reason = refusal.reason
        return cls(message, retry_after_s=wait_s, reason=reason, decided_s=decided_s)


def refusal_log(clock: Callable[[], float]) -> RareLog:
    """Logs refused requests, counted by reason."""
    return RareLog(log, "requests are refused", _LOG_EVERY_S, clock)


def is_fault(error: TandemError) -> bool:
    """Whether a request that ended with this error failed by a fault of the service.

    An error of the client and a cap of its tenant are no fault. A pool that sleeps is none either,
    because the client is told so in time, and both arms of a canary wait for the same start.
    """
    if isinstance(error, Refused):
        return error.reason != "starting" and not error.reason.startswith("tenant_")
    return not isinstance(error, _OF_THE_CLIENT)
