"""Failed gRPC calls: each becomes a TandemError, or is tried again where no router took it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from cluster.api.error_mapping import error_from_rpc
from engine.errors import Cancelled, TandemError, Unavailable

# Pauses before a call that no router took is tried again. A client may learn of a router's end
# a moment late.
_PAUSES_S = (0.02, 0.1, 0.5)
_BROKEN = "the connection to the router broke; send the request again"
_NOT_TAKEN = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


class NotTaken(Exception):
    """A call ended before any event of it came, and no router ended it.

    A gRPC server takes its last call before its client hears that the server stops. Calls between
    the two end like that.
    """

    def __init__(self, error: TandemError) -> None:
        super().__init__(error.message)
        self.error = error


class CallTries:
    """The tries of one call. It is tried again while no router took it, as another router may.

    A pause comes after each round over all `routers`.
    """

    def __init__(self, timeout_s: float | None, routers: int = 1) -> None:
        self._ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._pauses_s = list(_PAUSES_S)
        self._routers = routers
        self._failures = 0
        self._taken = False

    def left_s(self) -> float | None:
        """Seconds left for all tries together; None without a bound."""
        return None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())

    def over(self) -> None:
        """Note that a router took the call, so that it is not tried again."""
        self._taken = True

    async def another(self, failed: NotTaken) -> None:
        """Wait for the next try; raises the error where no try is left.

        A stream that broke raises Unavailable: its router may have died.
        """
        self._failures += 1
        round_over = self._failures % self._routers == 0
        if self._taken and isinstance(failed.error, Unavailable):
            raise Unavailable(f"{_BROKEN} ({failed.error.message})") from None
        if self._taken or (round_over and not self._pauses_s):
            raise failed.error from None
        if round_over:
            await asyncio.sleep(self._pauses_s.pop(0))


@asynccontextmanager
async def tandem_errors(
    call: Any, not_taken: Collection[grpc.StatusCode] = _NOT_TAKEN
) -> AsyncIterator[None]:
    """Turn a failed call's exception into the TandemError that it stands for.

    A call that ended with one of the codes `not_taken`, and not by a router, raises NotTaken.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        failure = error_from_rpc(error)
        # A router that ends a call itself sends a trailer with the class of the error.
        if error.code() in not_taken and not error.trailing_metadata():
            raise NotTaken(failure) from None
        raise failure from None
    except asyncio.CancelledError:
        # grpc.aio raises this, too, for a call that the server ended with CANCELLED.
        task = asyncio.current_task()
        if task is None or task.cancelling() or not call.done():
            raise
        failure = Cancelled(await call.details() or "the call was cancelled")
        if not await call.trailing_metadata():
            raise NotTaken(failure) from None
        raise failure from None
