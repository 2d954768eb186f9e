"""The errors of Tandem, which the server raises and a client gets: `tandem_client/errors.py`."""

from __future__ import annotations

from tandem_client.errors import (
    AlreadyRunning,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    PromptTooLong,
    ReplicaLost,
    TandemError,
    TransferFailed,
    Unauthenticated,
    Unavailable,
    UnsupportedModel,
)

__all__ = [
    "AlreadyRunning",
    "Cancelled",
    "ConfigError",
    "DeadlineExceeded",
    "Internal",
    "InvalidRequest",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "PromptTooLong",
    "ReplicaLost",
    "TandemError",
    "TransferFailed",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedModel",
    "first_line",
    "shown",
]

_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """A value of a caller, short enough to be quoted in an error message."""
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number that large"
    if isinstance(value, str):
        quoted = repr(value[: _SHOWN_CHARACTERS + 1])
    elif isinstance(value, bool | int | float):
        quoted = repr(value)
    else:
        return "an object" if isinstance(value, dict) else "a list"
    return quoted if len(quoted) <= _SHOWN_CHARACTERS else f"{quoted[: _SHOWN_CHARACTERS - 3]}..."


def first_line(error: BaseException) -> str:
    """The first line of an error's text without its end mark; else the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
