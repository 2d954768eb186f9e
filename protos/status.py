"""The fields of a TandemError on the wire: trailers of a gRPC status, or a message."""

from __future__ import annotations

import math

from protos import calls_pb2
from protos.convert import valid_text
from tandem_client.errors import CLASS_TRAILER, FIELD_TRAILER, TandemError, retry_after

RETRY_TRAILER = "retry-after-ms"
# A bound: a gRPC status travels percent-encoded in a header block of 8 KiB.
MAX_MESSAGE_BYTES = 800


def trailers(error: TandemError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata from which a caller rebuilds the error: class, field, retry time."""
    found = [(CLASS_TRAILER, _kind(error))]
    field = getattr(error, "field", None)
    if field is not None:
        found.append((FIELD_TRAILER, _printable(field)))
    wait_ms = retry_after_ms(error)
    if wait_ms is not None:
        found.append((RETRY_TRAILER, str(wait_ms)))
    return tuple(found)


def failure_to_proto(error: TandemError) -> calls_pb2.Failure:
    """The error as a message: class, text, field, retry time."""
    return calls_pb2.Failure(
        kind=_kind(error),
        message=one_line(error.message),
        field=getattr(error, "field", None),
        retry_after_ms=retry_after_ms(error),
    )


def retry_after_ms(error: TandemError) -> int | None:
    """Whole milliseconds until trying again makes sense, rounded up; None: it never does."""
    wait_s = retry_after(error)
    return None if wait_s is None else math.ceil(wait_s * 1000)


def one_line(message: str) -> str:
    """`message` on one line, valid and short enough for a header."""
    line = valid_text(" ".join(message[: 4 * MAX_MESSAGE_BYTES].split()))
    encoded = line.encode()
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return line
    return encoded[:MAX_MESSAGE_BYTES].decode(errors="ignore") + "…"


def _kind(error: TandemError) -> str:
    """The error's class, or its nearest ancestor in the shared tree."""
    kinds = type(error).__mro__
    return next(kind for kind in kinds if kind.__module__ == TandemError.__module__).__name__


def _printable(field: str) -> str:
    """The field's name in printable ASCII, as a text trailer requires."""
    return "".join(char if " " <= char <= "~" else "?" for char in one_line(field)[:200])
