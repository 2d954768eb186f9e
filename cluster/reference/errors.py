"""docs/reference/errors.md: the tree of errors, and the status of each for clients."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from cluster.api.error_mapping import status_of
from cluster.reference.markdown import code, summary, table
from engine.errors import TandemError

# Where errors are declared, from the root to the leaves.
MODULES = (
    "tandem_client.errors",
    "engine.kv.block_pool",
    "kv_transfer.errors",
    "cluster.admission.refusals",
)
_INTRODUCTION = """\
# Errors

`make reference` writes this page from the code.

Every error that Tandem raises stands in one tree. A client gets the status of the class, or that of
its nearest ancestor which has one.

- **gRPC**: the trailer `tandem-error` has the class. The trailer `tandem-field` names the field
  that is wrong. The trailer `retry-after-ms` has the time to come back.
- **HTTP**: the body has OpenAI's form, `{"error": {"message", "type", "param", "code"}}`. The
  headers `Retry-After` (seconds, rounded up) and `retry-after-ms` have the time to come back.
- **In a stream that has begun**: the last message has the same fields, and `retry_after_ms`.

*Retry* says whether the same request may succeed later. A request for a model that is not there has
the code `model_not_found`.
"""
_HEAD = ("error", "meaning", "retry", "gRPC", "HTTP", "type", "code", "declared in")


def page() -> str:
    """The whole page."""
    found = list(tree())
    lines = "\n".join("  " * depth + kind.__name__ for depth, kind in found)
    return (
        f"{_INTRODUCTION}\n```\n{lines}\n```\n\n{table(_HEAD, (_row(kind) for _, kind in found))}"
    )


def tree() -> Iterator[tuple[int, type[TandemError]]]:
    """Every error of `MODULES` with its depth, parents first."""
    for module in MODULES:
        import_module(module)
    yield from _below(TandemError, 0)


def _below(kind: type[TandemError], depth: int) -> Iterator[tuple[int, type[TandemError]]]:
    yield depth, kind
    for child in kind.__subclasses__():
        if child.__module__ in MODULES:
            yield from _below(child, depth + 1)


def _row(kind: type[TandemError]) -> tuple[str, ...]:
    error = kind("")
    status = status_of(error)
    return (
        code(kind.__name__),
        summary(kind),
        "yes" if error.retryable else "no",
        code(status.grpc.name),
        str(status.http),
        code(status.type),
        code(status.code or ""),
        code(kind.__module__.replace(".", "/") + ".py"),
    )
