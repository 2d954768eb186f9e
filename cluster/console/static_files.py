"""The files of the console's page, and the headers that keep the page to this server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.responses import Response

from engine.errors import NotFound, shown

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Nothing of another host, nothing inline, and no text that becomes markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file: its bytes, media type, and entity tag."""

    body: bytes
    media_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file of the page by its name."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found[path.name] = StaticFile(body, _TYPES[path.suffix], tag)
    return found


def answer_with(name: str, known_tag: str | None) -> Response:
    """The answer with that file; 304 where the client has it. Raises NotFound."""
    file = static_files().get(name)
    if file is None:
        raise NotFound(f"the console has no file {shown(name)}")
    headers = HEADERS | {"etag": file.etag}
    if known_tag == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, 200, headers | {"content-type": file.media_type})
