"""What a lane may take of a bound that all share. Pure."""

from __future__ import annotations

from engine.errors import Overloaded

# The rest is there for the other lanes, however much batch work has come.
_BATCH_SHARE = 0.75


def most_of(bound: int, *, batch: bool) -> int:
    """Up to where a request may fill a bound, with all that is there; one of any lane has room."""
    return max(1, int(_BATCH_SHARE * bound)) if batch else bound


def require_room(there: int, bound: int, what: str, *, batch: bool) -> None:
    """Raise Overloaded, as so many `what`, where a queue has no room for one more of that lane."""
    most = most_of(bound, batch=batch)
    if there >= most:
        raise Overloaded(f"{most} {what} already", retry_after_s=1.0)
