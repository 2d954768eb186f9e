"""Every error that Tandem raises, as one tree.

TandemError
├── InvalidRequest          the request can never succeed as it is
│   └── PromptTooLong
├── AlreadyRunning          a request of this id runs; it may be about to end
├── NotFound                no such model, endpoint or request
├── Unauthenticated         no API key, or an unknown one
├── PermissionDenied        a known API key without the right to this
├── ConfigError             the configuration is wrong
├── UnsupportedModel        the model cannot be served, by name
├── Overloaded              no capacity now; says when to try again
├── Unavailable             a part that the request needs is gone; trying again may succeed
│   ├── ReplicaLost
│   └── TransferFailed
├── DeadlineExceeded
├── Cancelled
└── Internal                a fault of Tandem

`code` is the gRPC status name; `cluster/api/error_mapping.py` maps it to gRPC and HTTP.
"""

from __future__ import annotations

# The trailers of a failed call: the class of the error, and the field that is wrong.
CLASS_TRAILER = "tandem-error"
FIELD_TRAILER = "tandem-field"
# A promise: the retry time of an error that names none.
DEFAULT_RETRY_S = 1.0


class TandemError(Exception):
    """Root of the tree. `code` names a gRPC status; `retryable` says whether to try again.

    `ended_stream` is of the server: a resumable stream ended with this error.
    """

    code = "INTERNAL"
    retryable = False
    ended_stream = False

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InvalidRequest(TandemError):
    """The request can never succeed as it is; `field` names the wrong field."""

    code = "INVALID_ARGUMENT"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(InvalidRequest):
    """The prompt is too long for the context or for the KV pool."""


class AlreadyRunning(TandemError):
    """A request of this id still runs, as it does for a moment after its client has left."""

    code = "ABORTED"
    retryable = True


class NotFound(TandemError):
    """No such model, endpoint or request."""

    code = "NOT_FOUND"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(TandemError):
    """The request has no API key, or an unknown one."""

    code = "UNAUTHENTICATED"


class PermissionDenied(TandemError):
    """The API key is known and has no right to this."""

    code = "PERMISSION_DENIED"


class ConfigError(TandemError):
    """The configuration is wrong; the message names the key."""

    code = "FAILED_PRECONDITION"


class UnsupportedModel(TandemError):
    """The model cannot be served; the message gives the reason."""

    code = "FAILED_PRECONDITION"


class Overloaded(TandemError):
    """There is no capacity now; `retry_after_s` says when to try again."""

    code = "RESOURCE_EXHAUSTED"
    retryable = True


class Unavailable(TandemError):
    """A part that the request needs is gone; trying again may succeed."""

    code = "UNAVAILABLE"
    retryable = True


class ReplicaLost(Unavailable):
    """The replica of the request died or stopped answering."""


class TransferFailed(Unavailable):
    """The KV did not reach the decode replica whole."""


class DeadlineExceeded(TandemError):
    """The request ran out of its time."""

    code = "DEADLINE_EXCEEDED"
    retryable = True


class Cancelled(TandemError):
    """The client ended the request, or Tandem ended it for the client."""

    code = "CANCELLED"


class Internal(TandemError):
    """A fault of Tandem."""


def error_class(name: str) -> type[TandemError] | None:
    """The error class of that name, also one that is declared elsewhere below a class here."""
    tree: list[type[TandemError]] = [TandemError]
    for kind in tree:
        if kind.__name__ == name:
            return kind
        tree.extend(kind.__subclasses__())
    return None


def retry_after(error: TandemError) -> float | None:
    """Seconds until trying again makes sense; None: it never does."""
    if not error.retryable:
        return None
    return DEFAULT_RETRY_S if error.retry_after_s is None else max(0.0, error.retry_after_s)
