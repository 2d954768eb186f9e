"""A small HTTP client: posts JSON and reads the whole answer, with one connection per call."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, Self
from urllib.parse import urlsplit

from cluster.batch.lines import BatchReply
from engine.errors import ConfigError, Unavailable
from protos.wire.certificates import client_context

# Beyond what a server's own limit on a request should be (router.request_timeout_s).
_DEADLINE_S = 1800.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """A reply, and the seconds after which the server said to try again."""

    reply: BatchReply
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class BatchServer:
    """A server and its API key; `base` is a prefix of all paths."""

    host: str
    port: int
    base: str = ""
    tls: ssl.SSLContext | None = None
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str, api_key: str | None, authority: str | None = None) -> Self:
        """`http://host:port` or `https://…`, with `/v1` or without; raises ConfigError.

        `authority` is a PEM file; without it the system's authorities are trusted.
        """
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ConfigError(f"{url!r} is no http:// or https:// address")
        base = parts.path.rstrip("/").removesuffix("/v1")
        port = parts.port or _PORTS[parts.scheme]
        tls = client_context(authority) if parts.scheme == "https" else None
        return cls(parts.hostname, port, base, tls, api_key)

    async def post(self, path: str, body: Mapping[str, Any]) -> BatchResponse:
        """The answer, whatever its status; raises Unavailable where none came."""
        return await self._request("POST", path, json.dumps(body).encode())

    async def get(self, path: str) -> BatchResponse:
        """Get a path, without a body; as `post`."""
        return await self._request("GET", path, b"")

    async def _request(self, verb: str, path: str, data: bytes) -> BatchResponse:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                whole = await self._exchange(self._head(verb, path, len(data)) + data)
            return _answer(whole)
        except TimeoutError:
            raise Unavailable(f"no answer within {_DEADLINE_S:g} s") from None
        except (OSError, HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"{self.host}:{self.port}: {reason}") from None

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()

    def _head(self, verb: str, path: str, size: int) -> bytes:
        fields = {
            "Host": f"{self.host}:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(size),
            "Connection": "close",
        }
        if self.api_key:
            fields["Authorization"] = f"Bearer {self.api_key}"
        lines = [f"{verb} {self.base}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class _Socket:
    """The complete answer as the socket that HTTPResponse reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _answer(whole: bytes) -> BatchResponse:
    """Read an answer to its end; raises HTTPException where it was cut off or is none."""
    if whole and not whole.startswith(b"HTTP/"):
        raise HTTPException("it speaks no HTTP/1.1; a router's gRPC port is not its HTTP port")
    response = HTTPResponse(_Socket(whole))  # type: ignore[arg-type]
    response.begin()
    text = response.read().decode(errors="replace")
    try:
        body: Any = json.loads(text)
    except ValueError:
        body = text
    request_id = response.getheader("x-request-id") or ""
    return BatchResponse(BatchReply(response.status, request_id, body), _retry_after_s(response))


def _retry_after_s(response: HTTPResponse) -> float | None:
    """The retry time of an answer in seconds; `retry-after-ms` comes before `Retry-After`."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(response.getheader(name) or "") * unit_s)
        except ValueError:
            continue
    return None
