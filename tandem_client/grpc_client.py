"""A typed client of the gRPC API.

    async with Client("127.0.0.1:50051") as client:
        async for event in client.generate("Once upon a time", max_tokens=32):
            ...

Errors are the classes of `tandem_client.errors` that the router raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Self, TypedDict, Unpack

import grpc
import grpc.aio
from google.protobuf import message

from tandem_client.call_tries import CallTries, NotTaken, TandemErrors
from tandem_client.completion import Completion, whole_choice
from tandem_client.errors import DeadlineExceeded, Internal, TandemError
from tandem_client.events import Event, ModelInfo, Started, Summary, TextScores, Tokens
from tandem_client.inputs import Input, Options, Text, generate_request, resume_request, score_input
from tandem_client.messages import event_from_proto, model_from_proto, put_values, scored_from_proto
from tandem_client.protos import inference_pb2
from tandem_client.resumption import ResumedStream
from tandem_client.router_address import Address
from tandem_client.router_channels import RouterChannel, RouterChannels
from tandem_client.silence_watch import SILENCE_S

# Bound: the time in which a caller that gave up ends its stream.
_GIVE_UP_S = 2.0


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of a client."""

    timeout_s: float
    retries: int
    resume_window_s: float
    max_message_bytes: int
    credentials: grpc.ChannelCredentials | None
    api_key: str | None


class Client:
    """A channel to each router. `timeout_s` bounds `cancel` and `model`.

    Other calls have a `timeout_s` of their own. Without it they wait as long as their router says
    anything: after 25 s of silence they raise Unavailable.

    - A target is host:port, `grpcs://host:port` for TLS, or a RouterAddress with an authority of
      your own. Several targets are the routers of one cluster: the first healthy one gets a call.
    - A call that a router refused for now is tried again `retries` times, when the router said
      (`google.rpc.RetryInfo`). A call that no router took is tried again in any case.
    - A resumable stream may be broken for `resume_window_s`.
    - `api_key` goes with every call.
    """

    def __init__(
        self,
        target: Address | Sequence[Address],
        *,
        timeout_s: float = 10.0,
        retries: int = 0,
        resume_window_s: float = 60.0,
        max_message_bytes: int = 64 * 1024 * 1024,
        credentials: grpc.ChannelCredentials | None = None,
        api_key: str | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._retries = retries
        self._resume_window_s = resume_window_s
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # A client that only listens would soon ping no more.
            ("grpc.http2.max_pings_without_data", 0),
            # Channels of equal options would share a connection. A silent one is replaced.
            ("grpc.use_local_subchannel_pool", 1),
            # A connection may be reset by a router that leaves, where another one listens. A router
            # is back within seconds; gRPC would come to wait for minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
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
    ) -> AsyncGenerator[Event, None]:
        """Started, then Tokens, then Summary; raises a TandemError. Closing it cancels.

        With `progress`, and from endpoints of that mode, Progress comes between these and before.
        `prompt` is text, token ids, or messages (ChatMessage, or mappings of role and content). A
        ChatPrompt has tools, too.

        A `resumable` request goes on by itself where its connection breaks, on any of the routers.
        Closing it leaves the request to `resume` and `cancel`, for the time that the routers grant.
        """
        request = generate_request(prompt, options)
        run = self._resumed if request.resumable else self._once
        async with aclosing(run(request, timeout_s)) as events:
            async for event in events:
                yield event

    async def resume(
        self, stream_id: str, have: Sequence[int] = (), *, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Started, then the Tokens behind the first `have` of each choice, then Summary.

        Raises a TandemError: NotFound where the tenant has no such stream any more.
        """
        wanted = resume_request(stream_id, have)
        rest = self._resumed(None, timeout_s, wanted.stream_id, wanted.have)
        async with aclosing(rest) as events:
            async for event in events:
                yield event

    def _resumed(
        self,
        request: inference_pb2.GenerateRequest | None,
        timeout_s: float | None,
        stream_id: str = "",
        have: Sequence[int] = (),
    ) -> AsyncGenerator[Event, None]:
        return ResumedStream(
            self._routers,
            request,
            metadata=self._metadata,
            timeout_s=timeout_s,
            window_s=self._resume_window_s,
            retries=self._retries,
            stream_id=stream_id,
            have=have,
        ).events()

    async def _once(
        self, request: inference_pb2.GenerateRequest, timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        tries = CallTries(self._routers, timeout_s, self._retries)
        while True:
            router = self._routers.first
            call = router.stub.Generate(request, timeout=tries.left_s(), metadata=self._metadata)
            with router.silence.over(call) as watched:
                try:
                    async with TandemErrors(call):
                        while (
                            wire := await watched.read(SILENCE_S, patient=True)
                        ) is not grpc.aio.EOF:
                            tries.over(router)
                            event = event_from_proto(wire)
                            if event is not None:
                                yield event
                    return
                except (NotTaken, TandemError) as error:
                    failed = watched.silence or error
            await tries.another(router, failed)

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
        choices = tuple(
            whole_choice(runs.get(choice, ())) for choice in range(options.get("n") or 1)
        )
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
        inputs = [score_input(text, f"inputs[{index}]") for index, text in enumerate(texts)]
        request = inference_pb2.ScoreRequest(inputs=inputs)
        put_values(
            request, {"request_id": request_id, "endpoint": endpoint, "tenant": tenant, "top": top}
        )
        answer = await self._unary("Score", request, timeout_s)
        return [scored_from_proto(one) for one in answer.results]

    async def cancel(self, request_id: str = "", *, stream_id: str = "") -> bool:
        """Cancel a request in any phase; False where no request of that id runs.

        Every router finds a `stream_id`, and asks the other routers for a `request_id`. Older
        routers do not, so all known routers are asked. Raises Unavailable where a router that may
        run the request does not answer.
        """
        request = inference_pb2.CancelRequest(request_id=request_id, stream_id=stream_id)
        ends_s = time.monotonic() + self._timeout_s
        if request_id and len(self._routers) > 1:
            found = await self._cancel_everywhere(request)
            if found is not None:
                return found
        left_s = max(0.0, ends_s - time.monotonic())
        return bool((await self._unary("Cancel", request, left_s)).found)

    async def _cancel_everywhere(self, request: inference_pb2.CancelRequest) -> bool | None:
        """Ask all routers until one has ended the request; None where none answers."""
        ask = partial(self._ask, method="Cancel", request=request, timeout_s=self._timeout_s)
        asking = [asyncio.create_task(ask(one)) for one in self._routers]
        answered = None
        try:
            for answer in asyncio.as_completed(asking):
                with suppress(NotTaken, TandemError):
                    answered = bool((await answer).found)
                    if answered:
                        break
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return answered

    async def model(self) -> ModelInfo:
        """The model that is served."""
        request = inference_pb2.GetModelRequest()
        return model_from_proto(await self._unary("GetModel", request, self._timeout_s))

    async def _unary(self, method: str, request: message.Message, timeout_s: float | None) -> Any:
        tries = CallTries(self._routers, timeout_s, self._retries)
        while True:
            router = self._routers.first
            try:
                answer = await self._ask(router, method, request, tries.left_s())
            except (NotTaken, TandemError) as failed:
                await tries.another(router, failed)
            else:
                tries.over(router)
                return answer

    async def _ask(
        self, router: RouterChannel, method: str, request: message.Message, timeout_s: float | None
    ) -> Any:
        call = getattr(router.stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        async with TandemErrors(call):
            return await (call if timeout_s is not None else router.silence.answer(call))
