"""A router's two gRPC services with set answers, and a command run in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from cluster.cli import main as cli
from protos import router_pb2, router_pb2_grpc
from tandem_client.protos import inference_pb2, inference_pb2_grpc


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class Inference(inference_pb2_grpc.InferenceServicer):
    """Answers each prompt with two tokens; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[inference_pb2.GenerateRequest] = []
        self.resumed: list[inference_pb2.ResumeRequest] = []

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked.append(request)
        yield inference_pb2.GenerateEvent(
            started=inference_pb2.Started(
                request_id="r", stream_id="s" if request.resumable else ""
            )
        )
        for event in self._behind(0):
            yield event

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.resumed.append(request)
        started = inference_pb2.Started(request_id="r", stream_id=request.stream_id)
        yield inference_pb2.GenerateEvent(started=started)
        for event in self._behind(sum(request.have)):
            yield event

    def _behind(self, have: int) -> Iterator[inference_pb2.GenerateEvent]:
        for index, text in list(enumerate(("Good", " day")))[have:]:
            tokens = inference_pb2.Tokens(index=index, ids=[index], text=text)
            yield inference_pb2.GenerateEvent(tokens=tokens)
        choice = inference_pb2.ChoiceSummary(ttft_s=0.25)
        summary = inference_pb2.Summary(completion_tokens=2, choices=[choice], total_s=0.5)
        yield inference_pb2.GenerateEvent(summary=summary)


class Admin(router_pb2_grpc.AdminServicer):
    """A cluster of one prefill replica and one router."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.refusal: str | None = None
        self.authorizations: list[object] = []
        self.weaken_security = self.restart = False
        self.notices: list[str] = []
        # The first so many statuses end so.
        self.cut_off, self.cut_off_by = 0, grpc.StatusCode.CANCELLED
        # What starts at the next status; then the rollout serves.
        self.starting: list[router_pb2.StartingReplica] = []
        self.rows: list[str] = []
        self.silent: dict[str, str] = {}
        self.wanted: list[router_pb2.ListRequestsRequest] = []

    def note(self, context: Any) -> None:
        self.authorizations.append(dict(context.invocation_metadata()).get("authorization"))

    async def Rollout(  # noqa: N802
        self, request: router_pb2.RolloutRequest, context: Any
    ) -> router_pb2.RolloutResponse:
        self.weaken_security = request.weaken_security
        self.restart = request.restart
        weakens = ["router.api_keys: keys.yaml removed"] if request.weaken_security else []
        return router_pb2.RolloutResponse(id="r", weakens=weakens, notices=self.notices)

    async def Status(self, request: Any, context: Any) -> router_pb2.StatusResponse:  # noqa: N802
        self.note(context)
        if self.cut_off:
            self.cut_off -= 1
            await context.abort(self.cut_off_by)
        blocks = router_pb2.BlockCounts(total=64, used=3, cached=2, leased=1)
        replica = router_pb2.ReplicaStatus(
            id="prefill#a",
            role="prefill",
            address="h:1",
            healthy=True,
            waiting=5,
            blocks=blocks,
            start_s={"weights": 4.0, "check": 0.5},
        )
        router = router_pb2.ReplicaStatus(id="router#b", role="router", healthy=True, running=4)
        starting, self.starting = self.starting, []
        state = "starting" if starting else "serving"
        rollout = router_pb2.RolloutStatus(id="r", version="v", state=state)
        return router_pb2.StatusResponse(
            replicas=[replica, router], missing=self.missing, rollout=rollout, starting=starting
        )

    async def GiveRole(  # noqa: N802
        self, request: router_pb2.GiveRoleRequest, context: Any
    ) -> router_pb2.GiveRoleResponse:
        self.note(context)
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.NOT_FOUND, self.refusal)
        return router_pb2.GiveRoleResponse(before="prefill")

    async def ListRequests(  # noqa: N802
        self, request: router_pb2.ListRequestsRequest, context: Any
    ) -> router_pb2.ListRequestsResponse:
        self.note(context)
        self.wanted.append(request)
        return router_pb2.ListRequestsResponse(
            rows=self.rows, held=len(self.rows), silent=self.silent
        )

    async def Stop(self, request: Any, context: Any) -> router_pb2.StopResponse:  # noqa: N802
        self.note(context)
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.refusal)
        return router_pb2.StopResponse()


class Router:
    """A gRPC server with both services, on a thread of its own."""

    def __init__(self) -> None:
        self.inference, self.admin = Inference(), Admin()
        self.address = ""
        self._ready, self._thread = threading.Event(), threading.Thread(target=self._run)

    def __enter__(self) -> Router:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self._server() as port:
            self.address = f"127.0.0.1:{port}"
            self._ready.set()
            await self._end.wait()

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[int]:
        server = grpc.aio.server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self.inference, server)
        router_pb2_grpc.add_AdminServicer_to_server(self.admin, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        yield port
        await server.stop(0)
