"""TLS to Redis: the server is verified always, and changed certificates are followed."""

from __future__ import annotations

import ssl
from typing import Any

import redis.asyncio

from cluster.config.tls import RedisTlsConfig
from protos.wire.tls import Reloading, client_tls


class _VerifiedConnection(redis.asyncio.SSLConnection):
    """A connection that reads changed files before it connects; redis-py reads them once."""

    def __init__(self, *, contexts: Reloading[ssl.SSLContext], **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = contexts  # type: ignore[assignment]


def verify(pool: Any, tls: RedisTlsConfig) -> None:
    """Have all connections of a pool verify the server, whatever the address says."""
    pool.connection_class = _VerifiedConnection
    pool.connection_kwargs["contexts"] = client_tls(tls.authority, tls.identity)


def trust_hint(reason: str) -> str | None:
    """What to set where the client failed with this text; None where trust is not the reason."""
    if not any(f"verify failed: {fault}" in reason for fault in ("unable to get", "self-signed")):
        return None
    options = "tls.redis.authority, or with --tls-ca or TANDEM_TLS_CA for `tandem keys`"
    return f"the certificate of Redis is not trusted: name the file of its authority with {options}"
