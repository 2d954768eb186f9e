"""Failed gRPC calls: each becomes a TandemError, or is tried again where no router took it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

import grpc
import grpc.aio

from tandem_client.errors import (
    Cancelled,
    DeadlineExceeded,
    Overloaded,
    TandemError,
    Unavailable,
    retry_after,
)
from tandem_client.router_channels import RouterChannel, RouterChannels
from tandem_client.rpc_errors import error_from_rpc

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
    """The tries of one call, while nothing of an answer came.

    A call that no router took is tried again at the next router, with a pause after each round over
    all routers. A refused call is tried again `retries` times, when the router said.
    """

    def __init__(self, routers: RouterChannels, timeout_s: float | None, retries: int) -> None:
        self._ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._pauses_s = list(_PAUSES_S)
        self._routers = routers
        self._retries = retries
        self._failures = 0
        self._taken = False

    def left_s(self) -> float | None:
        """Seconds left for all tries together; None without a bound."""
        return None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())

    def over(self, router: RouterChannel) -> None:
        """Note that a router took the call, so that it is not tried again."""
        self._taken = True
        router.failed_s = 0.0

    async def another(self, router: RouterChannel, failed: NotTaken | TandemError) -> None:
        """Wait for the next try; raises the error where no try is left.

        A stream that broke raises Unavailable: its router may have died.
        """
        if isinstance(failed, NotTaken):
            await self._after_break(router, failed.error)
        else:
            await self._after_error(router, failed)

    async def _after_break(self, router: RouterChannel, error: TandemError) -> None:
        self._routers.failed(router)
        self._failures += 1
        round_over = self._failures % len(self._routers) == 0
        if self._taken and isinstance(error, Unavailable):
            raise Unavailable(f"{_BROKEN} ({error.message})") from None
        if self._taken or (round_over and not self._pauses_s):
            raise error from None
        if round_over:
            await asyncio.sleep(self._pauses_s.pop(0))

    async def _after_error(self, router: RouterChannel, error: TandemError) -> None:
        """As `another`. The time to wait is one router's, so a healthy other one is called at once.

        An Overloaded is of the whole cluster.
        """
        wait_s, left_s = retry_after(error), self.left_s()
        if not self._taken and isinstance(error, Unavailable | DeadlineExceeded):
            self._routers.failed(router)
        if self._taken or not self._retries or not isinstance(error, Overloaded | Unavailable):
            raise error from None
        if wait_s is None or (isinstance(error, Unavailable) and not self._routers.first.failed_s):
            wait_s = 0.0
        if left_s is not None and wait_s >= left_s:
            raise error from None
        self._retries -= 1
        await asyncio.sleep(wait_s)


class TandemErrors:
    """Turns a failed call's exception into the TandemError that it stands for.

    A call that ended with one of the codes `not_taken`, and not by a router, raises NotTaken.

    It is no generator, because a loop that ends closes its generators in any order.
    """

    def __init__(self, call: Any, not_taken: Collection[grpc.StatusCode] = _NOT_TAKEN) -> None:
        self._call = call
        self._not_taken = not_taken

    async def __aenter__(self) -> None:
        """Begin to read the call."""

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise what the error stands for."""
        if isinstance(error, grpc.aio.AioRpcError):
            # A router that ends a call itself sends a trailer with the class of the error.
            taken = error.code() not in self._not_taken or error.trailing_metadata()
            failure = error_from_rpc(error)
        elif isinstance(error, asyncio.CancelledError):
            # grpc.aio raises this, too, for a call that the server ended with CANCELLED.
            task = asyncio.current_task()
            if task is None or task.cancelling() or not self._call.done():
                return
            failure = Cancelled(await self._call.details() or "the call was cancelled")
            taken = await self._call.trailing_metadata()
        else:
            return
        raise (failure if taken else NotTaken(failure)) from None
