"""`tandem keys`: makes, lists and removes API keys, in a file or in Redis.

A key is shown once, when it is made. Only its hash is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from cluster.api.validation import check_tenant
from cluster.cli.tls_options import tls_ca
from cluster.config.deployment import DirectoryConfig
from cluster.config.router import KEYS_IN_REDIS
from cluster.config.schema import load_config
from cluster.config.tls import RedisTlsConfig
from cluster.discovery.redis_directory import Directory
from cluster.tenants.api_keys import hash_of
from cluster.tenants.key_file import KeyFile
from engine.errors import InvalidRequest, NotFound

_KEY_BYTES = 32
_SHOWN = 12
_LEAST_PREFIX = 8
T = TypeVar("T")


class Keys(Protocol):
    """A store of hashed keys."""

    def keys(self) -> dict[str, str]:
        """Tenant by hash."""
        ...

    def add(self, digest: str, tenant: str) -> None:
        """Give the tenant the key of this hash."""
        ...

    def remove(self, digest: str) -> None:
        """Take the key of this hash from its tenant."""
        ...


def run(options: argparse.Namespace) -> int:
    """Run `tandem keys`; raises a TandemError."""
    keys = _opened(options)
    if options.action == "list":
        for digest, tenant in sorted(keys.keys().items(), key=lambda item: item[::-1]):
            print(f"{digest[:_SHOWN]}  {tenant}")
    elif options.name is None:
        raise InvalidRequest(f"`tandem keys {options.action}` needs a name")
    elif options.action == "add":
        tenant, key = check_tenant(options.name), new_key()
        keys.add(hash_of(key), tenant)
        print(key)
    else:
        digest = _named(keys.keys(), options.name)
        keys.remove(digest)
        print(f"{digest[:_SHOWN]} removed")
    return 0


def new_key() -> str:
    """A new key of 256 random bits."""
    return f"tandem-{secrets.token_urlsafe(_KEY_BYTES)}"


class _RedisKeys:
    """The keys in Redis. Each change has a connection of its own."""

    def __init__(self, url: str, tls: RedisTlsConfig | None) -> None:
        self._config = DirectoryConfig(url=url)
        self._tls = tls

    def keys(self) -> dict[str, str]:
        async def read(directory: Directory) -> dict[str, str]:
            return (await directory.api_keys())[1]

        return asyncio.run(self._with(read))

    def add(self, digest: str, tenant: str) -> None:
        asyncio.run(self._with(lambda directory: directory.add_api_key(digest, tenant)))

    def remove(self, digest: str) -> None:
        asyncio.run(self._with(lambda directory: directory.remove_api_key(digest)))

    async def _with(self, act: Callable[[Directory], Awaitable[T]]) -> T:
        directory = Directory.connect(self._config, self._tls)
        try:
            return await act(directory)
        finally:
            await directory.close()


def _opened(options: argparse.Namespace) -> Keys:
    """The store of keys that the options name; raises a TandemError."""
    file, url = options.file, options.redis
    tls = RedisTlsConfig(authority=tls_ca(options))
    if options.config is not None:
        config = load_config(options.config)
        if config.router.api_keys is None:
            raise InvalidRequest(f"{options.config} has no router.api_keys")
        if config.router.api_keys == KEYS_IN_REDIS:
            url, tls = config.directory.url, config.tls.redis or tls
        else:
            file = config.router.api_keys
    return KeyFile(Path(file)) if file is not None else _RedisKeys(url, tls)


def _named(keys: dict[str, str], prefix: str) -> str:
    """The only hash with that prefix; raises NotFound or InvalidRequest."""
    found = [digest for digest in keys if digest.startswith(prefix.lower())]
    if len(prefix) < _LEAST_PREFIX or len(found) > 1:
        raise InvalidRequest(f"{prefix!r} is too short: give more digits of the hash")
    if not found:
        raise NotFound(f"there is no key whose hash begins with {prefix!r}")
    return found[0]
