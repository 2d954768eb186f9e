"""A light asyncio client for streamed completions, because it shares the cores with the server.

While streams run, it only notes reads with their times; all parsing comes afterwards.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from bench.load.http_recording import RecordedAnswer
from protos.wire.certificates import client_context

_PORTS = {"http": 80, "https": 443}
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the headers of all requests to it. `base` is a prefix of all paths."""

    host: str
    port: int
    base: str = ""
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def local(cls, port: int) -> Self:
        """A server on this machine."""
        return cls("127.0.0.1", port)

    @classmethod
    def at(cls, url: str, api_key: str | None = None, authority: str | None = None) -> Self:
        """`http://host:port` or `https://…`, with `/v1` or without; raises ValueError.

        `authority` is a PEM file, as of `tandem batch`; raises ConfigError.
        """
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// address")
        carried = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        port = parts.port or _PORTS[parts.scheme]
        base = parts.path.rstrip("/").removesuffix("/v1")
        tls = client_context(authority) if parts.scheme == "https" else None
        return cls(parts.hostname, port, base, tls, carried)

    def post(self, body: Mapping[str, object], path: str = "/v1/completions") -> bytes:
        """The bytes of a request with a JSON body, to be made before the clock runs."""
        data = json.dumps(body).encode()
        more = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        return self._head("POST", path, more) + data

    def get(self, path: str) -> bytes:
        """The bytes of a request without a body."""
        return self._head("GET", path, {})

    def _head(self, verb: str, path: str, more: Mapping[str, str]) -> bytes:
        fields = {"Host": f"{self.host}:{self.port}", **more, **self.headers, "Connection": "close"}
        lines = [f"{verb} {self.base}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def send_request(target: Target, request: bytes, deadline_s: float) -> RecordedAnswer:
    """Send one request on a connection of its own and read the answer to its end.

    Raises TimeoutError or OSError, and drops the part of the answer that came.
    """
    loop = asyncio.get_running_loop()
    receiver = _ReadRecorder(request, loop.create_future())
    async with asyncio.timeout(deadline_s):
        transport, _ = await loop.create_connection(
            lambda: receiver, target.host, target.port, ssl=target.tls
        )
        try:
            await receiver.done
        finally:
            transport.close()
    return receiver.answer


async def send_requests(
    target: Target, requests: Sequence[bytes], deadline_s: float
) -> list[RecordedAnswer]:
    """Send all requests at once, each on a connection of its own."""
    return await asyncio.gather(
        *(send_request(target, request, deadline_s) for request in requests)
    )


class _ReadRecorder(asyncio.Protocol):
    """Notes every read with its time, and wakes no task before the end."""

    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self.answer = RecordedAnswer(0.0)
        self.done = done
        self._request = request
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.answer.asked = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.answer.reads.append((time.perf_counter(), data))
        if data.endswith(_LAST_CHUNK) and self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
