"""The parts of every public gRPC method: its handler, its caller's key, its errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_reflection.v1alpha import reflection, reflection_pb2

from cluster.api.bounded_proto import check_fields
from cluster.api.error_mapping import status_of
from cluster.api.off_loop import off_loop
from cluster.api.tracing import REQUEST_ID, Trace
from cluster.gateway.grpc_retry_info import detailed_trailers
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from engine.errors import Internal, InvalidRequest, TandemError
from protos.status import one_line

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
# Bound: a question of reflection, which is a name.
_QUESTION_BYTES = 4096


class Received(Generic[_M]):
    """The message of a call, not parsed yet. Parsed by grpc.aio, it would hold the event loop."""

    def __init__(self, kind: type[_M], message: bytes) -> None:
        self._kind = kind
        self._message = message

    async def read(self) -> _M:
        """The message; raises Overloaded, or InvalidRequest if it is none or exceeds a bound."""
        return await self.take(lambda found: found)

    async def take(self, work: Callable[[_M], _T]) -> _T:
        """What `work` makes of the message, on a thread where it is large; raises as `read`."""
        return await off_loop(len(self._message), lambda: work(self._parse()))

    def _parse(self) -> _M:
        check_fields(self._kind, self._message)
        try:
            return self._kind.FromString(self._message)
        except DecodeError:
            text = "the request is not a valid message; is its text UTF-8?"
            raise InvalidRequest(text) from None


def method_handler(
    form: Callable[..., Any], answer: Callable[..., Any], kind: type[Message]
) -> Any:
    """A method's handler, which gets a Received of that kind of message."""
    return form(
        answer, request_deserializer=partial(Received, kind), response_serializer=_serialize
    )


def reflection_handler(services: Sequence[str]) -> grpc.GenericRpcHandler:
    """The reflection of `services`. It asks for no key, so it parses small questions alone.

    A larger question is taken for an empty one, which is answered with INVALID_ARGUMENT.
    """
    kind = reflection_pb2.ServerReflectionRequest
    method = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(services).ServerReflectionInfo,
        request_deserializer=lambda found: kind.FromString(
            found if len(found) <= _QUESTION_BYTES else b""
        ),
        response_serializer=_serialize,
    )
    return grpc.method_handlers_generic_handler(
        reflection.SERVICE_NAME, {"ServerReflectionInfo": method}
    )


def authorization_of(context: Context) -> str | None:
    """The `authorization` of a call."""
    return _metadata(context, "authorization")


def _metadata(context: Context, name: str) -> str | None:
    found = dict(context.invocation_metadata() or ()).get(name)
    return found if isinstance(found, str) else None


@asynccontextmanager
async def answering(context: Context) -> AsyncIterator[Trace]:
    """Turn every exception into the status of the call; gives the trace that its caller sent.

    The initial metadata has the caller's own `x-request-id`.
    """
    try:
        trace = Trace.of(partial(_metadata, context))
        if trace.request_id:
            await context.send_initial_metadata(((REQUEST_ID, trace.request_id),))
        yield trace
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
    message, trailers = one_line(failure.message), detailed_trailers(failure, code)
    # Its traceback holds this frame, and the frames below hold the request.
    del failure
    await context.abort(code, message, trailers)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
