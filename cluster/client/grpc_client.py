"""A typed client of the gRPC API.

    async with Client("127.0.0.1:50051") as client:
        async for event in client.generate("Once upon a time", max_tokens=32):
            ...

Errors come back as the classes of `engine/errors.py` that the other side raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypedDict, TypeVar, Unpack

import grpc
import grpc.aio
from google.protobuf import message

from cluster.api import (
    ChatMessage,
    ChatPrompt,
    Event,
    GenerateRequest,
    ModelCard,
    Prompt,
    Started,
    Summary,
    TextPrompt,
    TokenPrompt,
    Tokens,
)
from cluster.api.error_mapping import error_from_rpc
from cluster.api.proto_convert import event_from_proto, model_from_proto, request_to_proto
from cluster.api.score_proto_convert import (
    TextScores,
    prompt_to_proto,
    score_prompt,
    scored_from_proto,
)
from cluster.api.validation import chat_message, shown, text_prompt, token_prompt
from engine.errors import Cancelled, Internal, InvalidRequest, TandemError
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import FinishReason, SampledToken
from protos import inference_pb2, inference_pb2_grpc

# Before a call that no router took is made once more: the first router's leaving may take a moment
# to be heard of.
_PAUSES_S = (0.02, 0.1, 0.5)
_UNTAKEN = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
_T = TypeVar("_T")
Message = ChatMessage | Mapping[str, str]
Text = str | Sequence[int]
Input = str | Sequence[int] | Sequence[Message] | TextPrompt | TokenPrompt | ChatPrompt


class Options(TypedDict, total=False):
    """What `generate` and `complete` take by name: where to, how many, and the sampling."""

    n: int
    request_id: str
    model: str
    endpoint: str
    tenant: str
    progress: bool
    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None


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

    `api_key` goes with every call.
    """

    def __init__(
        self,
        target: str,
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
        ]
        self._channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
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
        request = request_to_proto(_request(prompt, options))
        tries = _Tries(timeout_s)
        while True:
            call = self._stub.Generate(request, timeout=tries.left_s(), metadata=self._metadata)
            try:
                async with _raising(call):
                    async for event in call:
                        tries.over()
                        if not event.HasField("heartbeat"):
                            yield event_from_proto(event)
                return
            except _Untaken as untaken:
                await tries.another(untaken)
            finally:
                call.cancel()

    async def complete(
        self, prompt: Input, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """Everything that `generate` yields, gathered; raises a TandemError."""
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

        A text is a string or token ids. Of a pair of them those of the second are scored alone.
        """
        inputs = [
            prompt_to_proto(score_prompt(text, top, f"texts[{place}]"))
            for place, text in enumerate(texts)
        ]
        request = inference_pb2.ScoreRequest(
            request_id=request_id, endpoint=endpoint, tenant=tenant, inputs=inputs, top=top
        )
        answer = await self._unary(self._stub.Score, request, timeout_s)
        return [scored_from_proto(one) for one in answer.results]

    async def cancel(self, request_id: str) -> bool:
        """End a request wherever it is; False where no such request runs."""
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
        tries = _Tries(timeout_s)
        while True:
            call = method(request, timeout=tries.left_s(), metadata=self._metadata)
            try:
                async with _raising(call):
                    return await call
            except _Untaken as untaken:
                await tries.another(untaken)


class _Untaken(Exception):
    """A call ended before anything of it came, and not by a router: it was stopping, or is gone.

    Between a gRPC server's last call and its client's hearing that it stops, calls end like that.
    """

    def __init__(self, error: TandemError) -> None:
        super().__init__(error.message)
        self.error = error


class _Tries:
    """Calls that were untaken are made again, until an event has come; there is another router."""

    def __init__(self, timeout_s: float | None) -> None:
        self._ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._pauses_s = list(_PAUSES_S)

    def left_s(self) -> float | None:
        """What is left of the time for all of them together."""
        return None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())

    def over(self) -> None:
        """The call was taken, so there is no other one."""
        self._pauses_s.clear()

    async def another(self, untaken: _Untaken) -> None:
        """Wait for the next one; raises the error where there is none."""
        if not self._pauses_s:
            raise untaken.error from None
        await asyncio.sleep(self._pauses_s.pop(0))


@asynccontextmanager
async def _raising(call: Any) -> AsyncIterator[None]:
    """Turn a failed call's exception into the TandemError that it stands for."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        failure = error_from_rpc(error)
        # Whatever a router itself ends has a trailer with its class.
        if error.code() in _UNTAKEN and not error.trailing_metadata():
            raise _Untaken(failure) from None
        raise failure from None
    except asyncio.CancelledError:
        # grpc.aio raises this, too, for a call that the server ended with CANCELLED.
        task = asyncio.current_task()
        if task is None or task.cancelling() or not call.done():
            raise
        failure = Cancelled(await call.details() or "the call was cancelled")
        if not await call.trailing_metadata():
            raise _Untaken(failure) from None
        raise failure from None


def _request(prompt: Input, options: Options) -> GenerateRequest:
    sampling: dict[str, Any] = dict(options)
    names = ("n", "request_id", "model", "endpoint", "tenant", "progress")
    given = {name: sampling.pop(name) for name in names if name in sampling}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = (sampling["stop"],)
    return GenerateRequest(_prompt(prompt), SamplingParams(**sampling), **given)


def _prompt(prompt: Input) -> Prompt:
    if isinstance(prompt, TextPrompt | TokenPrompt | ChatPrompt):
        return prompt
    if isinstance(prompt, str):
        return text_prompt(prompt, "prompt")
    if prompt and isinstance(prompt[0], ChatMessage | Mapping):
        return ChatPrompt(
            tuple(_message(entry, f"messages[{place}]") for place, entry in enumerate(prompt))
        )
    return token_prompt(prompt, "prompt")


def _message(entry: object, name: str) -> ChatMessage:
    if isinstance(entry, ChatMessage):
        return entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
        raise InvalidRequest(f"{name} must have a role and a content, not {shown(entry)}")
    return chat_message(entry.get("role"), entry["content"], name)


def _gather(runs: Sequence[Tokens]) -> CompletedChoice:
    return CompletedChoice(
        text="".join(run.text for run in runs),
        tokens=tuple(token for run in runs for token in run.tokens),
        finish_reason=runs[-1].finish_reason if runs else None,
    )
