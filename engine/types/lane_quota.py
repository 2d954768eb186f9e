"""The part of a shared bound that each lane may use. Pure."""

from __future__ import annotations

from engine.errors import Overloaded

# Promise: the batch lane leaves a quarter of each bound to the other lanes.
_BATCH_SHARE = 0.75


def most_of(bound: int, *, batch: bool) -> int:
    """The part of a bound that a request may fill; at least 1 for a request of any lane."""
    return max(1, int(_BATCH_SHARE * bound)) if batch else bound


def require_capacity(used: int, bound: int, what: str, *, batch: bool) -> None:
    """Raise Overloaded if a queue takes no more of this lane; `what` is in the message."""
    most = most_of(bound, batch=batch)
    if used >= most:
        raise Overloaded(f"{most} {what} already", retry_after_s=1.0)
