"""A typed client of the gRPC API.

    async with Client("127.0.0.1:50051") as client:
        async for event in client.generate("Once upon a time", max_tokens=32):
            ...

Errors are the classes of `engine/errors.py` that the router raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, Unpack

import grpc
from google.protobuf import message

from cluster.api import (
    Event,
    ModelCard,
    Started,
    Summary,
    Tokens,
)
from cluster.api.event_streams import closing
from cluster.api.proto_convert import event_from_proto, model_from_proto, request_to_proto
from cluster.api.score_proto_convert import (
    TextScores,
    prompt_to_proto,
    score_prompt,
    scored_from_proto,
)
from cluster.api.validation import check_have, check_stream_id
from cluster.client.call_tries import CallTries, NotTaken, tandem_errors
from cluster.client.inputs import Input, Options, Text, generate_request
from cluster.client.resumption import ResumedStream
from cluster.client.router_address import Address
from cluster.client.router_channels import RouterChannel, RouterChannels
from engine.errors import DeadlineExceeded, Internal, TandemError
from engine.types.sequence import FinishReason, SampledToken
from protos import inference_pb2

# Bound: the time in which a caller that gave up ends its stream.
_GIVE_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class CompletedChoice:
    """One finished choice."""

    text: str
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    started: Started
    choices: tuple[CompletedChoice, ...]
    summary: Summary

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


class Client:
    """A channel to each router. `timeout_s` bounds the calls that do not stream.

    A target is host:port, `grpcs://host:port` for TLS, or a RouterAddress with an authority of your
    own. Of several routers of one cluster, the next one gets the calls that no router took.
    `api_key` goes with every call. A resumable stream may be broken for `resume_window_s`.
    """

    def __init__(
        self,
        target: Address | Sequence[Address],
        *,
        timeout_s: float = 10.0,
        resume_window_s: float = 60.0,
        max_message_bytes: int = 64 * 1024 * 1024,
        credentials: grpc.ChannelCredentials | None = None,
        api_key: str | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._resume_window_s = resume_window_s
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # A router is back within seconds; gRPC would come to wait for minutes.
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]
        self._routers = RouterChannels(target, options, credentials)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channels and cancel what still runs on them."""
        await self._routers.close()

    async def generate(
        self, prompt: Input, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncIterator[Event]:
        """Started, then Tokens, then Summary; raises a TandemError. Closing it cancels.

        With `progress`, and from endpoints of that mode, Progress comes between these and before.
        `prompt` is text, token ids, or messages (ChatMessage, or mappings of role and content).

        A `resumable` request goes on by itself where its connection breaks, on any of the routers.
        Closing it leaves the request to `resume` and `cancel`, for the time that the routers grant.
        """
        request = generate_request(prompt, options)
        wire = request_to_proto(request)
        run = self._resumed if request.resumable else self._once
        async with closing(run(wire, timeout_s)) as events:
            async for event in events:
                yield event

    async def resume(
        self, stream_id: str, have: Sequence[int] = (), *, timeout_s: float | None = None
    ) -> AsyncIterator[Event]:
        """Started, then the Tokens behind the first `have` of each choice, then Summary.

        Raises a TandemError: NotFound where the tenant has no such stream any more.
        """
        rest = self._resumed(None, timeout_s, check_stream_id(stream_id), check_have(have))
        async with closing(rest) as events:
            async for event in events:
                yield event

    def _resumed(
        self,
        request: inference_pb2.GenerateRequest | None,
        timeout_s: float | None,
        stream_id: str = "",
        have: Sequence[int] = (),
    ) -> AsyncIterator[Event]:
        return ResumedStream(
            self._routers,
            request,
            metadata=self._metadata,
            timeout_s=timeout_s,
            window_s=self._resume_window_s,
            stream_id=stream_id,
            have=have,
        ).events()

    async def _once(
        self, request: inference_pb2.GenerateRequest, timeout_s: float | None
    ) -> AsyncIterator[Event]:
        tries = CallTries(timeout_s, len(self._routers))
        while True:
            router = self._routers.first
            call = router.stub.Generate(request, timeout=tries.left_s(), metadata=self._metadata)
            try:
                async with tandem_errors(call):
                    async for event in call:
                        tries.over()
                        if not event.HasField("heartbeat"):
                            yield event_from_proto(event)
                return
            except NotTaken as failed:
                self._routers.failed(router)
                await tries.another(failed)
            finally:
                call.cancel()

    async def complete(
        self, prompt: Input, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """The whole answer: all events of `generate` gathered. Raises a TandemError.

        A caller that gives up ends the request, on any router where it is `resumable`.
        """
        started: Started | None = None
        summary: Summary | None = None
        runs: dict[int, list[Tokens]] = {}
        try:
            async for event in self.generate(prompt, timeout_s=timeout_s, **options):
                match event:
                    case Started():
                        started = event
                    case Tokens():
                        runs.setdefault(event.choice, []).append(event)
                    case Summary():
                        summary = event
        except (asyncio.CancelledError, DeadlineExceeded):
            if started is not None and started.stream_id:
                await self._give_up(started.stream_id)
            raise
        if started is None or summary is None:
            raise Internal("the reply ended early")
        choices = tuple(_gather(runs.get(choice, ())) for choice in range(options.get("n") or 1))
        return Completion(started, choices, summary)

    async def _give_up(self, stream_id: str) -> None:
        """End a stream that nobody reads any more. Where no router answers, it ends by itself."""
        with suppress(TandemError, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S):
                await self.cancel(stream_id=stream_id)

    async def score(
        self,
        texts: Sequence[Text | tuple[Text, Text]],
        *,
        top: int = 0,
        timeout_s: float | None = None,
        request_id: str = "",
        endpoint: str = "",
        tenant: str = "",
    ) -> list[TextScores]:
        """Log-probabilities of the texts' own tokens; raises a TandemError.

        A text is a string or token ids. Of a pair of texts only the second is scored.
        """
        inputs = [
            prompt_to_proto(score_prompt(text, top, f"texts[{index}]"))
            for index, text in enumerate(texts)
        ]
        request = inference_pb2.ScoreRequest(
            request_id=request_id, endpoint=endpoint, tenant=tenant, inputs=inputs, top=top
        )
        answer = await self._unary("Score", request, timeout_s)
        return [scored_from_proto(one) for one in answer.results]

    async def cancel(self, request_id: str = "", *, stream_id: str = "") -> bool:
        """Cancel a request in any phase; False where no request of that id runs.

        Every router knows a `stream_id`. A `request_id` is known to the router that runs it, so all
        routers are asked.
        """
        request = inference_pb2.CancelRequest(request_id=request_id, stream_id=stream_id)
        if request_id and len(self._routers) > 1:
            asked = [self._ask(one, "Cancel", request, self._timeout_s) for one in self._routers]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            found = [one.found for one in answers if not isinstance(one, BaseException)]
            if found:
                return any(found)
        return bool((await self._unary("Cancel", request, self._timeout_s)).found)

    async def model(self) -> ModelCard:
        """The model that is served; `created` is not carried and is 0."""
        request = inference_pb2.GetModelRequest()
        return model_from_proto(await self._unary("GetModel", request, self._timeout_s))

    async def _unary(self, method: str, request: message.Message, timeout_s: float | None) -> Any:
        tries = CallTries(timeout_s, len(self._routers))
        while True:
            router = self._routers.first
            try:
                return await self._ask(router, method, request, tries.left_s())
            except NotTaken as failed:
                self._routers.failed(router)
                await tries.another(failed)

    async def _ask(
        self, router: RouterChannel, method: str, request: message.Message, timeout_s: float | None
    ) -> Any:
        call = getattr(router.stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        async with tandem_errors(call):
            return await call


def _gather(runs: Sequence[Tokens]) -> CompletedChoice:
    return CompletedChoice(
        text="".join(run.text for run in runs),
        tokens=tuple(token for run in runs for token in run.tokens),
        finish_reason=runs[-1].finish_reason if runs else None,
    )
