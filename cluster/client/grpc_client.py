"""A typed client of the gRPC API.

    async with Client("127.0.0.1:50051") as client:
        async for event in client.generate("Once upon a time", max_tokens=32):
            ...

Errors are the classes of `engine/errors.py` that the router raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar, Unpack

import grpc
from google.protobuf import message

from cluster.api import (
    Event,
    ModelCard,
    Started,
    Summary,
    Tokens,
)
from cluster.api.proto_convert import event_from_proto, model_from_proto, request_to_proto
from cluster.api.score_proto_convert import (
    TextScores,
    prompt_to_proto,
    score_prompt,
    scored_from_proto,
)
from cluster.client.call_tries import CallTries, NotTaken, tandem_errors
from cluster.client.inputs import Input, Options, Text, generate_request
from cluster.client.router_address import Address, open_channel
from engine.errors import Internal
from engine.types.sequence import FinishReason, SampledToken
from protos import inference_pb2, inference_pb2_grpc

_T = TypeVar("_T")


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
    """One channel to a router at `target`. `timeout_s` bounds the calls that do not stream.

    `target` is host:port, `grpcs://host:port` for TLS, or a RouterAddress with an authority of your
    own. `api_key` goes with every call.
    """

    def __init__(
        self,
        target: Address,
        *,
        timeout_s: float = 10.0,
        max_message_bytes: int = 64 * 1024 * 1024,
        credentials: grpc.ChannelCredentials | None = None,
        api_key: str | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # A router is back within seconds; gRPC would come to wait for minutes.
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]
        self._channel = open_channel(target, options, credentials)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel and cancel what still runs on it."""
        await self._channel.close()

    async def generate(
        self, prompt: Input, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncIterator[Event]:
        """Started, then Tokens, then Summary; raises a TandemError. Closing it cancels.

        With `progress`, and from endpoints of that mode, Progress comes between these and before.
        `prompt` is text, token ids, or messages (ChatMessage, or mappings of role and content).
        """
        request = request_to_proto(generate_request(prompt, options))
        tries = CallTries(timeout_s)
        while True:
            call = self._stub.Generate(request, timeout=tries.left_s(), metadata=self._metadata)
            try:
                async with tandem_errors(call):
                    async for event in call:
                        tries.over()
                        if not event.HasField("heartbeat"):
                            yield event_from_proto(event)
                return
            except NotTaken as failed:
                await tries.another(failed)
            finally:
                call.cancel()

    async def complete(
        self, prompt: Input, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """The whole answer: all events of `generate` gathered. Raises a TandemError."""
        started: Started | None = None
        summary: Summary | None = None
        runs: dict[int, list[Tokens]] = {}
        async for event in self.generate(prompt, timeout_s=timeout_s, **options):
            match event:
                case Started():
                    started = event
                case Tokens():
                    runs.setdefault(event.choice, []).append(event)
                case Summary():
                    summary = event
        if started is None or summary is None:
            raise Internal("the reply ended early")
        choices = tuple(_gather(runs.get(choice, ())) for choice in range(options.get("n") or 1))
        return Completion(started, choices, summary)

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
        answer = await self._unary(self._stub.Score, request, timeout_s)
        return [scored_from_proto(one) for one in answer.results]

    async def cancel(self, request_id: str) -> bool:
        """Cancel a request in any phase; False where no request of that id runs."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        return bool((await self._unary(self._stub.Cancel, request, self._timeout_s)).found)

    async def model(self) -> ModelCard:
        """The model that is served; `created` is not carried and is 0."""
        request = inference_pb2.GetModelRequest()
        return model_from_proto(await self._unary(self._stub.GetModel, request, self._timeout_s))

    async def _unary(
        self,
        method: Callable[..., Awaitable[_T]],
        request: message.Message,
        timeout_s: float | None,
    ) -> _T:
        tries = CallTries(timeout_s)
        while True:
            call = method(request, timeout=tries.left_s(), metadata=self._metadata)
            try:
                async with tandem_errors(call):
                    return await call
            except NotTaken as failed:
                await tries.another(failed)


def _gather(runs: Sequence[Tokens]) -> CompletedChoice:
    return CompletedChoice(
        text="".join(run.text for run in runs),
        tokens=tuple(token for run in runs for token in run.tokens),
        finish_reason=runs[-1].finish_reason if runs else None,
    )
