"""gRPC methods that parse their messages here: wrong bytes get a status, large ones a thread.

Left to grpc.aio, a message is parsed on the event loop, and one that cannot be parsed ends as
UNKNOWN with the exception's text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from cluster.api.off_loop import off_loop
from engine.errors import InvalidRequest, TandemError
from protos.status import abort

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")


def method(form: Callable[..., Any], answer: Callable[..., Any]) -> Any:
    """A method's handler; `answer` gets the bytes of the message. `form` is one of gRPC's."""
    return form(answer, response_serializer=_serialize)


async def parsed(kind: type[_M], message: bytes, take: Callable[[_M], _T]) -> _T:
    """What `take` makes of the message; raises what it raises, InvalidRequest, or Overloaded."""

    def work() -> _T:
        try:
            found = kind.FromString(message)
        except DecodeError:
            text = "the request is not a valid message; is its text UTF-8?"
            raise InvalidRequest(text) from None
        return take(found)

    return await off_loop(len(message), work)


def unary_service(
    service: ServiceDescriptor, servicer: object
) -> Callable[[grpc.aio.Server], None]:
    """Adds a service of unary methods to a server; `servicer` answers them by their names."""
    handlers = {
        one.name: method(
            grpc.unary_unary_rpc_method_handler,
            _unary(GetMessageClass(one.input_type), getattr(servicer, one.name)),
        )
        for one in service.methods
    }
    found = grpc.method_handlers_generic_handler(service.full_name, handlers)
    return lambda server: server.add_generic_rpc_handlers((found,))


def _unary(kind: type[Message], answer: Callable[..., Any]) -> Callable[..., Any]:
    async def call(message: bytes, context: Any) -> Any:
        try:
            request = await parsed(kind, message, lambda found: found)
        except TandemError as error:
            await abort(context, error)
        return await answer(request, context)

    return call


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
