"""The client of Redis. A TLS server is verified always, and changed certificates are followed."""

from __future__ import annotations

import os
import ssl
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cluster.config.deployment import DirectoryConfig
from cluster.config.tls import RedisTlsConfig
from engine.errors import ConfigError
from protos.wire.tls import Reloading, client_tls

_PASSWORD = "TANDEM_REDIS_PASSWORD"


def open_client(config: DirectoryConfig, timeout_s: float, tls: RedisTlsConfig) -> Any:
    """A client for `config.url`, which sends nothing before its first call.

    The password is the url's, or that in TANDEM_REDIS_PASSWORD. Raises ConfigError.
    """
    if config.url is None:
        raise ConfigError("directory.url is not set")
    try:
        client = redis.asyncio.Redis.from_url(
            config.url,
            password=os.environ.get(_PASSWORD),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            encoding_errors="replace",  # bytes that are no text are a value to refuse, not a fault
        )
    except ValueError as error:
        raise ConfigError(f"directory.url {config.url!r}: {error}") from None
    if config.url.startswith("rediss:"):
        _verify(client.connection_pool, tls)
    return client


def trust_hint(reason: str) -> str | None:
    """What to set where the client failed with this text; None where trust is not the reason."""
    if not any(f"verify failed: {fault}" in reason for fault in ("unable to get", "self-signed")):
        return None
    options = "tls.redis.authority, or with --tls-ca or TANDEM_TLS_CA for `tandem keys`"
    return f"the certificate of Redis is not trusted: name the file of its authority with {options}"


class _VerifiedConnection(redis.asyncio.SSLConnection):
    """A connection that reads changed files before it connects; redis-py reads them once."""

    def __init__(self, *, contexts: Reloading[ssl.SSLContext], **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = contexts  # type: ignore[assignment]


def _verify(pool: Any, tls: RedisTlsConfig) -> None:
    """Have all connections of a pool verify the server, whatever the address says."""
    pool.connection_class = _VerifiedConnection
    pool.connection_kwargs["contexts"] = client_tls(tls.authority, tls.identity)
