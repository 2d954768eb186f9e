"""Clients of the three front ends with one form: the events of `cluster.api`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, Self

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from cluster.api import Event, Resumability
from cluster.api.event_streams import closing
from cluster.gateway.websocket import TENANT_HEADER
from engine.errors import Internal
from tandem_client import Client
from tests.chaos.web_stream import WebStream, error_of

FrontEnd = Literal["grpc", "http", "websocket"]
FRONT_ENDS: tuple[FrontEnd, ...] = ("grpc", "http", "websocket")
# A router sends a heartbeat after 10 s without an event.
_SILENCE_S, _CONNECT_S = 25.0, 10.0
_SUSPENDED = "resumability "


class EventStreamClient(WebStream):
    """Server-sent events of `/v1/completions`, resumed by `Last-Event-ID`."""

    def __init__(self, http: httpx.AsyncClient, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._http = http
        self._last_id: str | None = None

    async def call(self, door: str) -> AsyncIterator[Event]:
        async with self._request(door) as response:
            if response.status_code != 200:
                wait = response.headers.get("retry-after-ms")
                body = json.loads(await response.aread())
                raise error_of(body, None if wait is None else int(wait))
            for event in self.started(response.headers.get("x-stream-id", "")):
                yield event
            async for text in self._texts(response):
                if text == "[DONE]":
                    yield self.summary()
                    return
                if text.startswith(_SUSPENDED):
                    yield Resumability(json.loads(text.removeprefix(_SUSPENDED))["suspended"])
                    continue
                chunk = json.loads(text)
                if "error" in chunk:
                    raise error_of(chunk, chunk["error"].get("retry_after_ms"))
                for one in chunk["choices"]:
                    at = one["index"]
                    yield self.tokens(at, self.have[at], one["token_ids"], one)
                self._check()
                if self.cancelled and not self.stream_id:
                    return

    def _request(self, door: str) -> Any:
        headers = {TENANT_HEADER: self.tenant}
        if self.stream_id:
            if self._last_id is None:
                return self._http.stream("GET", f"http://{door}/v1/streams/{self.stream_id}")
            headers |= {"last-event-id": self._last_id}
            return self._http.stream("GET", f"http://{door}/v1/streams", headers=headers)
        body = self.options | {"stream": True, "return_token_ids": True}
        body["stream_options"] = {"include_usage": True}
        return self._http.stream(
            "POST", f"http://{door}/v1/completions", json=body, headers=headers
        )

    async def _texts(self, response: httpx.Response) -> AsyncIterator[str]:
        """The data of each event that came whole, and the comments on resuming."""
        rest, data, last = b"", list[str](), self._last_id
        async for piece in response.aiter_bytes():
            *lines, rest = (rest + piece).split(b"\n")
            for line in map(bytes.decode, lines):
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if not line:
                    self._last_id, found, data = last, data, []
                    if found:
                        yield "\n".join(found)
                elif name == "data":
                    data.append(value)
                elif name == "id":
                    last = value
                elif not name and value.startswith(_SUSPENDED):
                    yield value

    def _check(self) -> None:
        """The id of the last event counts the tokens that came."""
        if self._last_id is None:
            return
        counts = self._last_id.removesuffix(":end").rpartition(":")[2]
        have = [self.have[choice] for choice in range(self.n)]
        if list(map(int, counts.split("."))) != have:
            raise Internal(f"the event's id says {counts}, and {have} tokens came")

    async def cancel(self) -> None:
        self.cancelled = True
        if self.stream_id:
            for door in self.doors:
                with suppress(httpx.TransportError):
                    url, headers = f"http://{door}/v1/streams/{self.stream_id}", {}
                    headers = {TENANT_HEADER: self.tenant}
                    if (await self._http.delete(url, headers=headers)).status_code == 200:
                        return


class SocketClient(WebStream):
    """One generation on a WebSocket of its own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._socket: ClientConnection | None = None

    async def call(self, door: str) -> AsyncIterator[Event]:
        headers = {TENANT_HEADER: self.tenant}
        url = f"ws://{door}/v1/stream"
        async with connect(
            url, additional_headers=headers, proxy=None, open_timeout=_CONNECT_S, close_timeout=1
        ) as socket:
            self._socket = socket
            await self._say(self._opening())
            if self.cancelled:
                await self._say({"type": "cancel"})
            while not self.ended:
                message = json.loads(await socket.recv())
                for event in self._events(message):
                    yield event

    def _opening(self) -> dict[str, Any]:
        if not self.stream_id:
            return {"type": "completion"} | self.options
        have = [self.have[choice] for choice in range(self.n)]
        return {"type": "resume", "stream_id": self.stream_id, "have": have}

    def _events(self, message: dict[str, Any]) -> Sequence[Event]:
        match message["type"]:
            case "started":
                return self.started(message.get("stream_id", ""))
            case "tokens":
                return [self.tokens(message["choice"], message["index"], message["ids"], message)]
            case "resumability":
                return [Resumability(message["suspended"])]
            case "end":
                return [self.summary()]
            case "error":
                raise error_of(message, message.get("retry_after_ms"))
        raise Internal(f"a message of the type {message['type']} was not asked for")

    async def cancel(self) -> None:
        self.cancelled = True
        with suppress(WebSocketException):
            await self._say({"type": "cancel"})

    async def _say(self, message: dict[str, Any]) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps({"id": self.name} | message))


class Generates(Protocol):
    """The part of a client that a stream of the chaos uses."""

    def generate(self, prompt: Sequence[int], **options: Any) -> AsyncIterator[Event]: ...

    async def cancel(self, request_id: str) -> object: ...


class _WebClient:
    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self._streams = dict[str, WebStream]()

    async def generate(self, prompt: Sequence[int], **options: Any) -> AsyncIterator[Event]:
        stream = self._opened({"prompt": list(prompt)} | options)
        self._streams[stream.name] = stream
        try:
            async with closing(stream.events()) as events:
                async for event in events:
                    yield event
        finally:
            del self._streams[stream.name]

    async def cancel(self, request_id: str) -> None:
        if stream := self._streams.get(request_id):
            await stream.cancel()


class Clients:
    """A client of each front end. The doors are host:port. `http` is for further calls."""

    def __init__(self, grpc: Sequence[str], http: Sequence[str]) -> None:
        self.grpc = Client(grpc)
        self.http_doors = http
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        self.http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
        self._of: dict[FrontEnd, Generates] = {
            "grpc": self.grpc,
            "http": _WebClient(lambda options: EventStreamClient(self.http, http, options)),
            "websocket": _WebClient(lambda options: SocketClient(http, options)),
        }

    def of(self, front_end: FrontEnd) -> Generates:
        """The client of a front end."""
        return self._of[front_end]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self.grpc.close()
