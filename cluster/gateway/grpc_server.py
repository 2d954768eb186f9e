"""The gRPC front end: `tandem.v1.Inference` over a Generator, with health checks and reflection."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cluster.api import Generator
from cluster.api.error_mapping import status_of
from cluster.api.event_streams import StallWatch, closing, end
from cluster.api.proto_convert import event_to_proto, model_to_proto, request_from_proto
from cluster.api.score_proto_convert import score_requests_from_proto, scored_to_proto
from cluster.api.scoring import score_all
from cluster.api.validation import check_request_id
from cluster.gateway.arrival_probes import GrpcArrivals
from cluster.gateway.grpc_retry_info import detailed_trailers
from cluster.sockets import cannot_listen, join
from cluster.telemetry.router_metrics import FRONT_END_ERRORS
from cluster.tenants.api_keys import ApiKeys, identify
from engine.errors import DeadlineExceeded, Internal, InvalidRequest, TandemError
from engine.kv.prefix_digest import DEFAULT_TENANT
from protos import inference_pb2, inference_pb2_grpc
from protos.status import one_line

log = logging.getLogger(__name__)

SERVICE = "tandem.v1.Inference"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
STALL_S = 60.0
HEALTH_POLL_S = 0.25
Add = Callable[[grpc.aio.Server], None]
_M = TypeVar("_M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class InferenceGateway(inference_pb2_grpc.InferenceServicer):
    """Answers `tandem.v1.Inference`. A call whose client reads nothing for `stall_s` ends.

    `arrived` says when a call that begins now came to the socket (monotonic).
    """

    def __init__(
        self,
        generator: Generator,
        *,
        stall_s: float = STALL_S,
        keys: ApiKeys | None = None,
        arrived: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived = arrived
        self._keys = keys
        self._generator = generator
        self._stall_s = stall_s

    def handlers(self) -> grpc.GenericRpcHandler:
        """The service's methods, for a server. They also get messages that cannot be parsed."""
        unary, streamed = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        wire = inference_pb2
        methods = {
            "Generate": _method(streamed, self.Generate, wire.GenerateRequest),
            "Score": _method(unary, self.Score, wire.ScoreRequest),
            "Cancel": _method(unary, self.Cancel, wire.CancelRequest),
            "GetModel": _method(unary, self.GetModel, wire.GetModelRequest),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest | None, context: Context
    ) -> None:
        """Write the request's events. Any end of the call closes the stream."""
        # A coroutine that writes, not a generator, so that a cancelled call always ends here.
        async with _answering(context):
            arrived_s = self._arrived()
            parsed = request_from_proto(_parsed(request))
            tenant = identify(self._keys, _authorization(context), parsed.tenant)
            parsed = replace(parsed, tenant=tenant, arrived_s=arrived_s)
            events = self._generator.generate(parsed)
            try:
                async with closing(events), StallWatch(self._stall_s) as watch:
                    async for event in events:
                        await watch.write(context.write(event_to_proto(event)))
            except TimeoutError:
                raise DeadlineExceeded(f"nothing was read for {self._stall_s:g} s") from None

    async def Score(  # noqa: N802
        self, request: inference_pb2.ScoreRequest | None, context: Context
    ) -> inference_pb2.ScoreResponse:
        """Score every text. Any end of the call ends all of them."""
        began_s = time.monotonic()
        async with _answering(context):
            wire = _parsed(request)
            name = check_request_id(wire.request_id) or uuid.uuid4().hex
            named = wire.tenant or DEFAULT_TENANT
            tenant = identify(self._keys, _authorization(context), named)
            requests = score_requests_from_proto(wire, name, tenant)
            found = await score_all(self._generator, requests)
        texts = self._generator.token_text
        results = await asyncio.to_thread(lambda: [scored_to_proto(one, texts) for one in found])
        return inference_pb2.ScoreResponse(
            request_id=name,
            model=self._generator.model.name,
            results=results,
            total_s=time.monotonic() - began_s,
        )

    async def Cancel(  # noqa: N802
        self, request: inference_pb2.CancelRequest | None, context: Context
    ) -> inference_pb2.CancelResponse:
        """Cancel a request of the caller's tenant by its id."""
        async with _answering(context):
            tenant = identify(self._keys, _authorization(context), DEFAULT_TENANT)
            request_id = check_request_id(_parsed(request).request_id)
            if not request_id:
                raise InvalidRequest("request_id must not be empty", field="request_id")
            found = await self._generator.cancel(request_id, tenant)
        return inference_pb2.CancelResponse(found=found)

    async def GetModel(  # noqa: N802
        self, request: inference_pb2.GetModelRequest | None, context: Context
    ) -> inference_pb2.Model:
        """Describe the model that is served."""
        async with _answering(context):
            _parsed(request)
            card = self._generator.model
        return model_to_proto(card)


class GrpcServer:
    """A running gRPC server, bound to `port`."""

    def __init__(
        self,
        server: grpc.aio.Server,
        port: int,
        health_status: health.aio.HealthServicer,
        follower: asyncio.Task[None],
        arrivals: GrpcArrivals,
    ) -> None:
        self.port = port
        self._arrivals = arrivals
        self._server = server
        self._health = health_status
        self._follower = follower

    async def stop(self, grace_s: float = 5.0) -> None:
        """Turn unhealthy, refuse new calls, end running calls after `grace_s`."""
        await end([self._follower])
        await self._arrivals.stop()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


async def start(
    generator: Generator,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    reuse_port: bool = False,
    stall_s: float = STALL_S,
    also: Sequence[tuple[str, Add]] = (),
    keys: ApiKeys | None = None,
) -> GrpcServer:
    """Serve `generator`; raises ConfigError where the port is taken.

    `also` names further services and the functions that add them to the server.
    """
    server = grpc.aio.server(options=_options(max_message_bytes, reuse_port))
    arrivals = GrpcArrivals()
    arrived = arrivals.probe.arrived
    gateway = InferenceGateway(generator, stall_s=stall_s, keys=keys, arrived=arrived)
    server.add_generic_rpc_handlers((gateway.handlers(),))
    health_status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_status, server)
    for _, add in also:
        add(server)
    names = (SERVICE, *(name for name, _ in also))
    reflection.enable_server_reflection((*names, health.SERVICE_NAME), server)
    try:
        bound = _bind(server, host, port)
        arrivals.add_to(server)
        await _set_health(generator, health_status, names)
        await server.start()
    except BaseException:
        await arrivals.stop()
        await server.stop(0)
        raise
    arrivals.start()
    follower = asyncio.create_task(_follow_health(generator, health_status, names))
    return GrpcServer(server, bound, health_status, follower, arrivals)


def _method(form: Callable[..., Any], answer: Callable[..., Any], kind: type[Message]) -> Any:
    """A method's handler; its request is None where the bytes are no such message."""

    def parse(message: bytes) -> Message | None:
        try:
            return kind.FromString(message)
        except DecodeError:
            return None

    return form(answer, request_deserializer=parse, response_serializer=_serialize)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _authorization(context: Context) -> str | None:
    found = dict(context.invocation_metadata() or ()).get("authorization")
    return found if isinstance(found, str) else None


def _parsed(request: _M | None) -> _M:
    if request is None:
        raise InvalidRequest("the request is not a valid message; is its text UTF-8?")
    return request


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    try:
        bound = server.add_insecure_port(join(host, port))
    except RuntimeError:
        bound = 0
    if not bound:
        raise cannot_listen(host, port)
    return bound


def _options(max_message_bytes: int, reuse_port: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


async def _set_health(
    generator: Generator, health_status: health.aio.HealthServicer, names: Sequence[str]
) -> None:
    kinds = health_pb2.HealthCheckResponse
    ready = not generator.missing()
    # An empty name stands for the whole server.
    for name in ("", *names):
        await health_status.set(name, kinds.SERVING if ready else kinds.NOT_SERVING)


async def _follow_health(
    generator: Generator, health_status: health.aio.HealthServicer, names: Sequence[str]
) -> None:
    while True:
        await asyncio.sleep(HEALTH_POLL_S)
        try:
            await _set_health(generator, health_status, names)
        except Exception:
            log.exception("the health of the pools could not be read")


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
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
