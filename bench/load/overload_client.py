"""Clients of an overload: one request each, over gRPC or HTTP, with its times and its refusal.

They share the cores with the server, so a request is made before the clock runs, and an answer is
read no further than its first token, its end and its retry time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from bench.load.client import Target, send_request
from bench.load.http_recording import BadAnswer, RecordedAnswer
from protos.status import RETRY_TRAILER
from tandem_client.protos import inference_pb2

GENERATE = "/tandem.v1.Inference/Generate"
OK, REFUSED = "ok", "refused"
# Connections that the gRPC calls share.
_CHANNELS = 4
_REFUSALS = {"RESOURCE_EXHAUSTED", "429"}


@dataclass(frozen=True, slots=True)
class OverloadAnswer:
    """One request; times are seconds of `time.perf_counter`.

    `sent_s` is before the connection is made. `outcome` is `ok`, `refused`, or the status of
    another error.
    """

    sent_s: float
    ended_s: float
    outcome: str
    first_s: float | None = None
    retry_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """From the connection to the first token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def took_s(self) -> float:
        """From the connection to the end."""
        return self.ended_s - self.sent_s


class OverloadClient(Protocol):
    """A kind of client."""

    async def send(self, prompt: str, answer_tokens: int) -> OverloadAnswer:
        """Send one request and read its answer."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class GrpcClient:
    """Requests over a few channels to the gRPC front end."""

    def __init__(self, address: str, deadline_s: float, endpoint: str = "") -> None:
        # Channels of equal options share one connection unless told not to.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channels = [
            grpc.aio.insecure_channel(address, options=options) for _ in range(_CHANNELS)
        ]
        self._methods: list[Any] = [channel.unary_stream(GENERATE) for channel in self._channels]
        self._deadline_s = deadline_s
        self._endpoint = endpoint
        self._sent = 0

    async def send(self, prompt: str, answer_tokens: int) -> OverloadAnswer:
        """See OverloadClient."""
        request = inference_pb2.GenerateRequest(
            text=prompt,
            endpoint=self._endpoint,
            sampling=inference_pb2.Sampling(max_tokens=answer_tokens, ignore_eos=True),
        ).SerializeToString()
        self._sent += 1
        method = self._methods[self._sent % _CHANNELS]
        sent_s, first_s, events = time.perf_counter(), None, 0
        call = method(request, timeout=self._deadline_s)
        try:
            async for _ in call:
                events += 1
                if events == 2:  # the first one says that the request was admitted
                    first_s = time.perf_counter()
        except grpc.aio.AioRpcError as error:
            ended_s, name = time.perf_counter(), error.code().name
            outcome = REFUSED if name in _REFUSALS else name
            return OverloadAnswer(sent_s, ended_s, outcome, first_s, _retry_s(error))
        return OverloadAnswer(sent_s, time.perf_counter(), OK, first_s)

    async def close(self) -> None:
        """See OverloadClient."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


class HttpClient:
    """Requests over a connection each to the HTTP front end."""

    def __init__(self, port: int, deadline_s: float, endpoint: str = "chat") -> None:
        self._target = Target.local(port)
        self._deadline_s = deadline_s
        self._endpoint = endpoint

    async def send(self, prompt: str, answer_tokens: int) -> OverloadAnswer:
        """See OverloadClient."""
        body: Mapping[str, object] = {
            "prompt": prompt,
            "endpoint": self._endpoint,
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        request, sent_s = self._target.post(body), time.perf_counter()
        try:
            answer = await send_request(self._target, request, self._deadline_s)
        except (TimeoutError, OSError) as error:
            return OverloadAnswer(sent_s, time.perf_counter(), type(error).__name__)
        return _read(answer, sent_s, time.perf_counter())

    async def close(self) -> None:
        """Do nothing: each request closes its connection."""


def _read(answer: RecordedAnswer, sent_s: float, ended_s: float) -> OverloadAnswer:
    try:
        status = str(answer.status())
        if status != "200":
            outcome = REFUSED if status in _REFUSALS else status
            return OverloadAnswer(sent_s, ended_s, outcome, retry_s=answer.retry_after_s())
        events = answer.events()
    except BadAnswer as error:
        return OverloadAnswer(sent_s, ended_s, str(error)[:80] or "BadAnswer")
    first_s = next((moment for moment, event in events if event.get("choices")), None)
    return OverloadAnswer(sent_s, ended_s, OK, first_s)


def _retry_s(error: grpc.aio.AioRpcError) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == RETRY_TRAILER:
            return int(value) / 1000
    return None
