"""What the endpoints of an API use of the HTTP front end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from cluster.gateway.answers.arrival import RequestArrival

_T = TypeVar("_T")


class WholeReply(Protocol):
    """A reply that comes in one piece."""

    async def whole(self) -> bytes:
        """The reply as JSON; raises a TandemError."""
        ...


class HttpFrontEnd(Protocol):
    """The part of `HttpGateway` that all APIs share."""

    def tenant(self, request: Request) -> str:
        """The tenant of a request; raises a TandemError."""
        ...

    async def take(self, request: Request, take: Callable[[Any, RequestArrival], _T]) -> _T:
        """The result of `take` for the body and the arrival of a request; raises as `read_json`."""
        ...

    async def whole(self, request: Request, reply: WholeReply) -> Response:
        """The answer with a whole reply, unless the client leaves; raises a TandemError."""
        ...
