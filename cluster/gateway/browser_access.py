"""Which web pages may call the HTTP front end, and under which names it is called.

A browser sends requests of any page to any server, also to one in a private network. Without API
keys such a request would be served. So two headers that a browser sets itself are checked:

- `Host`: a page whose own name is pointed at the router's address (DNS rebinding) sends that name.
- `Origin`: a page of another site sends its own origin.

With API keys neither is checked, because a page without a key is refused anyway.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.error_mapping import error_body
from cluster.gateway.answers.failures import NO_SNIFF
from cluster.gateway.messages.errors import is_messages, messages_error
from cluster.gateway.sse import dump
from protos.wire.refusals import RefusedConnections

ANY = "*"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]*)?")
_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, DELETE",
    # `*` does not stand for `Authorization`.
    "access-control-allow-headers": "authorization, content-type, *",
    "access-control-max-age": "600",
}
_EXPOSED = "x-request-id, request-id, x-stream-id, retry-after, retry-after-ms"


@dataclass(frozen=True, slots=True)
class BrowserRules:
    """The names of the server in lower case, and the origins that may call; `*` stands for all."""

    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def of(
        cls, hosts: Iterable[str] = (), origins: Iterable[str] = (), listening: str = "localhost"
    ) -> Self:
        """The rules of a configuration. The machine's names and `listening` belong to `hosts`."""
        machine = socket.gethostname()
        names = (*hosts, listening, "localhost", machine, machine.partition(".")[0])
        return cls(frozenset(name.lower() for name in names if name), frozenset(origins))

    def knows_host(self, host: str | None) -> bool:
        """Whether a `Host` header names this server; IP addresses do, and a missing header does."""
        if host is None or ANY in self.hosts:
            return True
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found.group(1).strip("[]").removesuffix(".").lower()
        return name in self.hosts or _is_address(name)

    def allows(self, origin: str) -> bool:
        """Whether the pages of another origin may call."""
        return ANY in self.origins or origin in self.origins


class BrowserGuard:
    """Refuses what the rules forbid, and answers browsers that ask first (CORS)."""

    def __init__(
        self, app: ASGIApp, rules: BrowserRules, open_to_all: bool, refusals: RefusedConnections
    ) -> None:
        self._app = app
        self._rules = rules
        self._open_to_all = open_to_all
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request or WebSocket."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        refusal = self._refusal(scope["path"], headers, origin) if self._open_to_all else None
        if refusal is not None:
            await refusal(scope, receive, send)
        elif origin is None or not self._rules.allows(origin) or scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            reply = Response(status_code=204, headers=_PREFLIGHT | self._granted(origin))
            await reply(scope, receive, send)
        else:
            await self._app(scope, receive, self._granting(origin, send))

    def _refusal(self, path: str, headers: Headers, origin: str | None) -> Response | None:
        host = headers.get("host")
        if not self._rules.knows_host(host):
            message = "the Host header names another server; `router.hosts` lists more names"
            return self._refused(path, 421, "host", message)
        if origin is not None and not (_same(origin, host) or self._rules.allows(origin)):
            message = (
                "pages of another origin may not call; `router.origins` lists the origins that may"
            )
            return self._refused(path, 403, "origin", message)
        return None

    def _refused(self, path: str, status: int, reason: str, message: str) -> Response:
        self._refusals.add(reason)
        body = error_body(message, "invalid_request_error", f"forbidden_{reason}", None)
        if is_messages(path):
            status, body = messages_error(status, message, None)
        return Response(dump(body), status, NO_SNIFF, "application/json")

    def _granting(self, origin: str, send: Send) -> Send:
        async def granting(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._granted(origin))
            await send(message)

        return granting

    def _granted(self, origin: str) -> dict[str, str]:
        if ANY in self._rules.origins:
            allowed = {"access-control-allow-origin": ANY}
        else:
            allowed = {"access-control-allow-origin": origin, "vary": "origin"}
        return allowed | {"access-control-expose-headers": _EXPOSED}


def _same(origin: str, host: str | None) -> bool:
    """Whether an `Origin` names the server that `Host` names."""
    return bool(host) and origin.partition("://")[2].lower() == str(host).lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
