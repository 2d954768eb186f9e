"""The parts of every public gRPC method: its handler, its caller's key, its errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from cluster.api.error_mapping import status_of
from cluster.gateway.grpc_retry_info import detailed_trailers
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from engine.errors import Internal, InvalidRequest, TandemError
from protos.status import one_line

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_M = TypeVar("_M", bound=Message)


def method_handler(
    form: Callable[..., Any], answer: Callable[..., Any], kind: type[Message]
) -> Any:
    """A method's handler; its request is None where the bytes are no such message."""

    def parse(message: bytes) -> Message | None:
        try:
            return kind.FromString(message)
        except DecodeError:
            return None

    return form(answer, request_deserializer=parse, response_serializer=_serialize)


def parsed(request: _M | None) -> _M:
    """The request; raises InvalidRequest where its bytes are no message."""
    if request is None:
        raise InvalidRequest("the request is not a valid message; is its text UTF-8?")
    return request


def authorization_of(context: Context) -> str | None:
    """The `authorization` of a call."""
    found = dict(context.invocation_metadata() or ()).get("authorization")
    return found if isinstance(found, str) else None


@asynccontextmanager
async def answering(context: Context) -> AsyncIterator[None]:
    """Turn every exception into the status of the call."""
    try:
        yield
        return
    except TandemError as error:
        failure = error
    except grpc.aio.AbortError:
        raise
    except Exception:
        log.exception("a call ended in a fault")
        failure = Internal("internal error")
    FRONT_END_ERRORS.inc(front_end="grpc", error=type(failure).__name__)
    code = status_of(failure).grpc
    await context.abort(code, one_line(failure.message), detailed_trailers(failure, code))


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
