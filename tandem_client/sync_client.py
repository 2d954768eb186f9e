"""The typed client for code without an event loop.

with SyncClient("127.0.0.1:50051") as client:
    for event in client.generate("Once upon a time", max_tokens=32):
        ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Self, Unpack

from tandem_client.completion import Completion
from tandem_client.errors import Cancelled
from tandem_client.events import Event, ModelInfo, TextScores
from tandem_client.grpc_client import Client, ClientOptions
from tandem_client.inputs import Input, Options, Text
from tandem_client.loop_thread import LoopThread
from tandem_client.router_address import Address


class SyncClient:
    """The calls of `Client`, each of which waits for its answer. Threads may share it.

    Ctrl-C in a call cancels the call. The event loop of its calls is in a thread of its own, so it
    can be used inside a running event loop, as in a notebook, too.
    """

    def __init__(
        self, target: Address | Sequence[Address], **options: Unpack[ClientOptions]
    ) -> None:
        self._thread = LoopThread()
        try:
            self._client = self._thread.run(_opened(target, options))
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channels and cancel what still runs on them. Idempotent."""
        try:
            self._thread.run(self._client.close())
        except (Cancelled, RuntimeError):
            if not self._thread.ended:
                raise
        self._thread.close()

    def generate(
        self, prompt: Input, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generator[Event, None, None]:
        """Started, then Tokens, then Summary; see `Client.generate`. Closing it cancels."""
        return self._each(self._client.generate(prompt, timeout_s=timeout_s, **options))

    def resume(
        self, stream_id: str, have: Sequence[int] = (), *, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """The rest of a resumable stream; see `Client.resume`."""
        return self._each(self._client.resume(stream_id, have, timeout_s=timeout_s))

    def complete(
        self, prompt: Input, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """The whole answer; see `Client.complete`."""
        return self._thread.run(self._client.complete(prompt, timeout_s=timeout_s, **options))

    def score(
        self,
        texts: Sequence[Text | tuple[Text, Text]],
        *,
        top: int = 0,
        timeout_s: float | None = None,
        request_id: str = "",
        endpoint: str = "",
        tenant: str = "",
    ) -> list[TextScores]:
        """Log-probabilities of the texts' own tokens; see `Client.score`."""
        return self._thread.run(
            self._client.score(
                texts,
                top=top,
                timeout_s=timeout_s,
                request_id=request_id,
                endpoint=endpoint,
                tenant=tenant,
            )
        )

    def cancel(self, request_id: str = "", *, stream_id: str = "") -> bool:
        """Cancel a request in any phase; see `Client.cancel`."""
        return self._thread.run(self._client.cancel(request_id, stream_id=stream_id))

    def model(self) -> ModelInfo:
        """The model that is served."""
        return self._thread.run(self._client.model())

    def _each(self, events: AsyncGenerator[Event, None]) -> Generator[Event, None, None]:
        try:
            while (event := self._thread.run(_next(events))) is not None:
                yield event
        finally:
            if not self._thread.ended:
                self._thread.run(_end(events))


async def _opened(target: Address | Sequence[Address], options: ClientOptions) -> Client:
    return Client(target, **options)


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


async def _end(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()
