"""Errors over gRPC: a TandemError out of a servicer ends the call with its status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from engine.errors import Internal, TandemError

log = logging.getLogger(__name__)

KIND_KEY = "tandem-error"
RETRY_KEY = "retry-after-ms"

_Servicer = TypeVar("_Servicer")
Method = Callable[[_Servicer, Any, Any], Awaitable[Any]]


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: TandemError) -> NoReturn:
    """End the call with the error's status; its class and retry time travel as trailers."""
    trailers = [(KIND_KEY, type(error).__name__)]
    if error.retry_after_s is not None:
        trailers.append((RETRY_KEY, str(round(error.retry_after_s * 1000))))
    await context.abort(grpc.StatusCode[error.code], error.message, trailing_metadata=trailers)
    raise AssertionError("abort returned")


def answers_errors(method: Method[_Servicer]) -> Method[_Servicer]:
    """Wrap a servicer's method: a TandemError aborts the call, anything else is a logged fault."""

    @wraps(method)
    async def call(self: _Servicer, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except TandemError as error:
            await abort(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            log.exception("a fault in %s", method.__qualname__)
            await abort(context, Internal(f"internal error: {type(error).__name__}"))

    return call
