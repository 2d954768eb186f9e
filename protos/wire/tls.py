"""TLS contexts that follow their files.

A new connection gets the certificate that is in the files. Connections that run keep theirs. Where
the files have changed and do not fit together, the last ones that did stay in use.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from engine.errors import ConfigError
from protos.wire.certificates import (
    Identity,
    MemberContexts,
    ServerCertificate,
    client_context,
    member_contexts,
    server_certificate,
)

log = logging.getLogger(__name__)

# How often the files are looked at, at most.
POLL_S = 1.0
T = TypeVar("T")
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Reloading(Generic[T]):
    """What `load` makes of some files, made anew when one of them has changed.

    The files are looked at in `get`, at most once in `poll_s`. Threads may share it. `load` raises
    ConfigError, here at first, and later only into the log.
    """

    def __init__(self, paths: Sequence[str], load: Callable[[], T], poll_s: float = POLL_S) -> None:
        self._paths = [Path(path) for path in paths]
        self._load = load
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._value = load()
        self._due_s = time.monotonic() + poll_s

    def get(self) -> T:
        """The value of the files as they are, or as they last fitted together."""
        with self._lock:
            now_s = time.monotonic()
            if now_s >= self._due_s:
                self._due_s = now_s + self._poll_s
                self._follow()
            return self._value

    def _follow(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._value = self._load()
        except ConfigError as error:
            log.warning("a changed certificate is not used", extra={"reason": error.message})
        else:
            log.info("a changed certificate is used", extra=_expiry(self._value))

    def _stamp(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in self._paths)


def front_end_tls(identity: Identity, poll_s: float = POLL_S) -> Reloading[ServerCertificate]:
    """The certificate of the front ends; raises ConfigError."""
    paths = (identity.certificate, identity.key)
    return Reloading(paths, lambda: server_certificate(identity), poll_s)


def member_tls(
    identity: Identity, authority: str, name: str, poll_s: float = POLL_S
) -> Reloading[MemberContexts]:
    """The contexts between members, who are all valid for `name`; raises ConfigError."""
    paths = (identity.certificate, identity.key, authority)
    return Reloading(paths, lambda: member_contexts(identity, authority, name), poll_s)


def client_tls(
    authority: str | None = None, identity: Identity | None = None, poll_s: float = POLL_S
) -> Reloading[ssl.SSLContext]:
    """Contexts of a client that verifies servers; raises ConfigError."""
    own = () if identity is None else (identity.certificate, identity.key)
    paths = own if authority is None else (*own, authority)
    return Reloading(paths, lambda: client_context(authority, identity), poll_s)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What a changed or replaced file has another of; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _expiry(value: object) -> dict[str, str]:
    return {"expires": value.expires} if hasattr(value, "expires") else {}
