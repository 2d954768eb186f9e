"""A replica's own front ends, for clients that send requests without a router.

They are the router's front ends, for the same clients, over the replica's servicer. A request is
read and checked as in a router, and the first token comes back. All other work is left out.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence

from cluster.api import (
    ChatPrompt,
    Event,
    GenerateRequest,
    ModelCard,
    ResumeRequest,
    Started,
    Summary,
    TokenPrompt,
    Tokens,
)
from cluster.api.requests import TokenOffsets
from cluster.gateway import grpc_server as gateway_grpc
from cluster.gateway import http_app as gateway_http
from cluster.gateway import uvicorn_server as http_server
from cluster.rpc.server import Serve
from engine.errors import Internal, InvalidRequest, NotFound
from protos.calls_pb2 import CallEvent
from protos.event_sink import Collect
from protos.prefill_pb2 import PrefillRequest
from protos.shared_prompt import SharedPrompt
from tandem_client.messages import tokens_from_proto

HOST = "127.0.0.1"
_CARD = ModelCard("fake", "", "", 1_000_000, 1_000_000, ("each", "coalesced"), 0)


class FirstOnly:
    """An sink for one call of which only the first token counts."""

    def __init__(self) -> None:
        self.first: asyncio.Future[CallEvent] = asyncio.get_running_loop().create_future()

    def put(self, event: CallEvent) -> None:
        """Take the event, if it is the first token."""
        if event.HasField("first_token") and not self.first.done():
            self.first.set_result(event)

    def ready(self, collect: Collect, due_s: float = 0.0) -> None:
        """Do nothing: only decode replicas call this."""


class _NoOffsets:
    """Implements `cluster.api.requests.TokenOffsets`."""

    def push(self, token: int) -> int:
        """Raise Internal, because no request here has log-probabilities."""
        raise Internal("no log-probabilities here")


class Direct:
    """Answers requests from a prefill servicer alone. Implements
    `cluster.api.requests.Generator`."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._names = itertools.count()

    @property
    def model(self) -> ModelCard:
        """The model card for the front ends."""
        return _CARD

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Started, the first token, Summary."""
        began_s = time.monotonic()
        if not isinstance(request.prompt, TokenPrompt):
            raise InvalidRequest("token ids only", field="prompt")
        name, ids = f"direct-{next(self._names)}", request.prompt.ids
        wire = PrefillRequest(transfer=name, request_id=name, tenant=request.tenant)
        prompt = SharedPrompt(ids, request.sampling)
        sink = FirstOnly()
        serving = asyncio.ensure_future(self._serve(wire, prompt, sink))
        try:
            yield Started(name, _CARD.name, len(ids), 0)
            event = await sink.first
            run = tokens_from_proto(event.first_token.tokens)
            yield Tokens(run.choice, run.index, run.ids, run.text, "length")
            yield Summary(len(ids), 1, (), time.monotonic() - began_s)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def count_tokens(self, model: str, prompt: ChatPrompt) -> int:
        """Not used here."""
        raise Internal("token ids only")

    async def resume(self, request: ResumeRequest) -> AsyncIterator[Event]:
        """Raise NotFound, because no stream is kept."""
        raise NotFound("this replica keeps no streams", field="stream_id")
        yield  # makes this a generator

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """Return False, because no request runs for long."""
        return False

    async def cancel_stream(self, stream_id: str, tenant: str) -> bool:
        """Return False, because no stream is kept."""
        return False

    def token_text(self, token: int) -> str:
        """Not used here."""
        return ""

    def offsets(self) -> TokenOffsets:
        """Offsets that refuse to count: a stream has them, and asks only for log-probabilities."""
        return _NoOffsets()

    def text(self, ids: Sequence[int]) -> str:
        """Not used here."""
        return ""

    def missing(self) -> tuple[str, ...]:
        """No pool is missing."""
        return ()

    def unhealthy(self) -> tuple[str, ...]:
        """No replica is unhealthy."""
        return ()


class DirectFrontEnds:
    """Both front ends of a replica, open until `stop`; `grpc` and `http` are their addresses."""

    def __init__(self, rpc: gateway_grpc.GrpcServer, http: http_server.HttpServer) -> None:
        self.grpc, self.http = f"{HOST}:{rpc.port}", f"{HOST}:{http.port}"
        self._rpc, self._http = rpc, http

    @classmethod
    async def open(cls, serve: Serve) -> DirectFrontEnds:
        """Open both front ends over a prefill servicer."""
        generator = Direct(serve)
        app = gateway_http.create_app(generator, metrics=lambda: (b"", "text/plain"))
        return cls(await gateway_grpc.start(generator), await http_server.start(app))

    async def stop(self) -> None:
        """Close both front ends."""
        await asyncio.gather(self._rpc.stop(0), self._http.stop(1))
