"""The gRPC front end: `tandem.v1.Inference` over a Generator, with health checks and reflection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cluster.api import Event, GenerateRequest, Generator
from cluster.api.event_streams import StallWatch, closing, end
from cluster.api.limits import MAX_REQUEST_BYTES
from cluster.api.off_loop import write_event
from cluster.api.proto_convert import (
    event_to_proto,
    model_to_proto,
    request_from_proto,
    resume_from_proto,
)
from cluster.api.score_proto_convert import score_requests_from_proto, scored_to_proto
from cluster.api.scoring import score_all
from cluster.api.validation import check_request_id, check_stream_id
from cluster.gateway.answers.stream_note import StreamNote
from cluster.gateway.arrival_probes import GrpcArrivals
from cluster.gateway.grpc_methods import (
    Context,
    Received,
    answering,
    authorization_of,
    method_handler,
    reflection_handler,
)
from cluster.gateway.grpc_tls import reloading_credentials
from cluster.sockets import cannot_listen, join
from cluster.tenants.api_keys import ApiKeys, identify
from engine.errors import DeadlineExceeded, InvalidRequest
from engine.kv.prefix_digest import DEFAULT_TENANT
from protos.wire.certificates import ServerCertificate
from protos.wire.tls import Reloading
from protos.wire.tls_listener import HANDSHAKE_S
from tandem_client.protos import inference_pb2, inference_pb2_grpc

log = logging.getLogger(__name__)

SERVICE = "tandem.v1.Inference"
STALL_S = 60.0
HEALTH_POLL_S = 0.25
Add = Callable[[grpc.aio.Server], None]


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
            "Generate": method_handler(streamed, self.Generate, wire.GenerateRequest),
            "Resume": method_handler(streamed, self.Resume, wire.ResumeRequest),
            "Score": method_handler(unary, self.Score, wire.ScoreRequest),
            "Cancel": method_handler(unary, self.Cancel, wire.CancelRequest),
            "GetModel": method_handler(unary, self.GetModel, wire.GetModelRequest),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def Generate(  # noqa: N802
        self, request: Received[inference_pb2.GenerateRequest], context: Context
    ) -> None:
        """Write the request's events. Any end of the call closes the stream."""
        async with answering(context) as trace:
            arrived_s, key = self._arrived(), authorization_of(context)
            identify(self._keys, key, DEFAULT_TENANT)  # before anything is parsed
            tenant_of = partial(identify, self._keys, key)
            wanted = await request.take(
                lambda wire: request_from_proto(wire, tenant_of, arrived_s, trace)
            )
            if wanted.resumable:
                wanted = replace(wanted, note=StreamNote.of_grpc(wanted).text())
            await self._write(self._generator.generate(wanted), context)

    async def Resume(  # noqa: N802
        self, request: Received[inference_pb2.ResumeRequest], context: Context
    ) -> None:
        """Write the rest of a resumable stream of the caller's tenant."""
        async with answering(context):
            tenant = identify(self._keys, authorization_of(context), DEFAULT_TENANT)
            wanted = replace(await request.take(resume_from_proto), tenant=tenant)
            await self._write(self._generator.resume(wanted), context)

    async def _write(self, events: AsyncIterator[Event], context: Context) -> None:
        # A coroutine that writes, not a generator, so that a cancelled call always ends here.
        try:
            async with closing(events), StallWatch(self._stall_s) as watch:
                async for event in events:
                    wire = await write_event(event, event_to_proto)
                    await watch.write(context.write(wire))
        except TimeoutError:
            raise DeadlineExceeded(f"nothing was read for {self._stall_s:g} s") from None

    async def Score(  # noqa: N802
        self, request: Received[inference_pb2.ScoreRequest], context: Context
    ) -> inference_pb2.ScoreResponse:
        """Score every text. Any end of the call ends all of them."""
        began_s = time.monotonic()
        async with answering(context) as trace:
            keys, key, drawn = self._keys, authorization_of(context), trace.new_id()
            identify(keys, key, DEFAULT_TENANT)  # before anything is parsed

            def take(wire: inference_pb2.ScoreRequest) -> tuple[str, list[GenerateRequest]]:
                name = check_request_id(wire.request_id) or drawn
                tenant = identify(keys, key, wire.tenant or DEFAULT_TENANT)
                requests = score_requests_from_proto(wire, name, tenant)
                return name, [replace(one, trace=trace) for one in requests]

            name, requests = await request.take(take)
            found = await score_all(self._generator, requests)
        model, texts = self._generator.model.name, self._generator.token_text

        def answer() -> inference_pb2.ScoreResponse:
            results = [scored_to_proto(one, texts) for one in found]
            took_s = time.monotonic() - began_s
            return inference_pb2.ScoreResponse(
                request_id=name, model=model, results=results, total_s=took_s
            )

        return await asyncio.to_thread(answer)

    async def Cancel(  # noqa: N802
        self, request: Received[inference_pb2.CancelRequest], context: Context
    ) -> inference_pb2.CancelResponse:
        """Cancel a request of the caller's tenant by its id, or by that of its stream."""
        async with answering(context):
            tenant = identify(self._keys, authorization_of(context), DEFAULT_TENANT)
            wire = await request.read()
            if bool(wire.request_id) == bool(wire.stream_id):
                text = "give request_id or stream_id, and not both"
                raise InvalidRequest(text, field="stream_id" if wire.stream_id else "request_id")
            if wire.stream_id:
                stream_id = check_stream_id(wire.stream_id)
                found = await self._generator.cancel_stream(stream_id, tenant)
            else:
                request_id = check_request_id(wire.request_id)
                found = await self._generator.cancel(request_id, tenant)
        return inference_pb2.CancelResponse(found=found)

    async def GetModel(  # noqa: N802
        self, request: Received[inference_pb2.GetModelRequest], context: Context
    ) -> inference_pb2.Model:
        """Describe the model that is served."""
        async with answering(context):
            identify(self._keys, authorization_of(context), DEFAULT_TENANT)
            await request.read()
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
    max_message_bytes: int = MAX_REQUEST_BYTES,
    reuse_port: bool = False,
    stall_s: float = STALL_S,
    also: Sequence[tuple[str, Add]] = (),
    keys: ApiKeys | None = None,
    tls: Reloading[ServerCertificate] | None = None,
) -> GrpcServer:
    """Serve `generator`; raises ConfigError where the port is taken.

    `also` names further services and the functions that add them to the server. With `tls`, over
    TLS alone.
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
    # The other services are for operators, who need no list of them.
    server.add_generic_rpc_handlers((reflection_handler((SERVICE, health.SERVICE_NAME)),))
    try:
        bound = _bind(server, host, port, tls)
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


def _bind(
    server: grpc.aio.Server, host: str, port: int, tls: Reloading[ServerCertificate] | None
) -> int:
    address = join(host, port)
    try:
        bound = (
            server.add_insecure_port(address)
            if tls is None
            else server.add_secure_port(address, reloading_credentials(tls))
        )
    except RuntimeError:
        bound = 0
    if not bound:
        raise cannot_listen(host, port)
    return bound


def _options(max_message_bytes: int, reuse_port: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_receive_message_length", max_message_bytes),
        # For TLS and the first settings; otherwise a silent connection holds a file for 120 s.
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
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
