"""The client of Redis. A TLS server is verified always, and changed certificates are followed.

`answered` gives every call a deadline, and turns each failure into Unavailable.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cluster.config.deployment import DirectoryConfig
from cluster.config.tls import RedisTlsConfig
from cluster.discovery.redis_pipe import RedisAddress
from engine.errors import ConfigError, Unavailable
from protos.wire.tls import Reloading, client_tls

_PASSWORD = "TANDEM_REDIS_PASSWORD"
# What uvloop says with a RuntimeError to a write on a connection that was reset before.
_RESET = "the handler is closed"
T = TypeVar("T")


def open_client(
    config: DirectoryConfig, timeout_s: float, tls: RedisTlsConfig, *, text: bool = True
) -> Any:
    """A client for `config.url`, which sends nothing before its first call.

    Its answers are texts, or bytes without `text`. The password is the url's, or that in
    TANDEM_REDIS_PASSWORD. Raises ConfigError.
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
            decode_responses=text,
            encoding_errors="replace",  # bytes that are no text are a value to refuse, not a fault
        )
    except ValueError as error:
        # The address may have a password, and this goes to logs.
        raise ConfigError(f"directory.url is no address of a Redis: {error}") from None
    if config.url.startswith("rediss:"):
        _verify(client.connection_pool, tls)
    return client


def address_of(client: Any) -> RedisAddress:
    """Where the Redis of a client is, and how to enter it."""
    known = client.connection_pool.connection_kwargs
    user, password = known.get("username"), known.get("password")
    login = (user, password or "") if user else (password,) if password else ()
    contexts = known.get("contexts")
    db = known.get("db") or 0
    if path := known.get("path"):
        return RedisAddress(path, db=db, login=login)
    host, port = known.get("host", "localhost"), known.get("port", 6379)
    return RedisAddress(None, host, port, db, login, contexts)


async def answered(command: Awaitable[T], timeout_s: float) -> T:
    """The answer to a command within `timeout_s`; Unavailable where it fails or is late."""
    try:
        async with asyncio.timeout(timeout_s):
            return await command
    except (RedisError, OSError) as error:  # TimeoutError is an OSError
        reason = str(error) or f"no answer within {timeout_s:g} s"
        raise Unavailable(f"Redis (directory.url): {_trust_hint(reason) or reason}") from error
    except RuntimeError as error:
        if _RESET not in str(error):
            raise
        raise Unavailable("Redis (directory.url): the connection was reset") from error
    finally:
        # The client may swallow a cancel that comes while it connects.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


def _trust_hint(reason: str) -> str | None:
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
