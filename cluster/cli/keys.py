"""`tandem keys`: makes, lists and removes API keys, in a file or in Redis.

A key is shown once, when it is made. Only its hash is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from cluster.cli.tls_options import tls_ca
from cluster.config.deployment import DirectoryConfig
from cluster.config.router import KEYS_IN_REDIS, Right
from cluster.config.schema import load_config
from cluster.config.tls import RedisTlsConfig
from cluster.discovery.redis_directory import Directory
from cluster.tenants.hashed_keys import OPENS, KeyOwner, check_owner, hash_of, new_key
from cluster.tenants.key_file import KeyFile
from cluster.tenants.operator_key import VARIABLE
from engine.errors import InvalidRequest, NotFound

_SHOWN = 12
_LEAST_PREFIX = 8
_HEADER = "send the header `Authorization: Bearer KEY`"
_USE: Mapping[Right, str] = {
    "tenant": f"set TANDEM_API_KEY for `tandem chat`, `generate` and `batch`, or {_HEADER}",
    "operator": f"set {VARIABLE} for these commands, or {_HEADER} for /metrics",
    "metrics": _HEADER,
}
T = TypeVar("T")


class Keys(Protocol):
    """A store of hashed keys."""

    def keys(self) -> dict[str, KeyOwner]:
        """Owner by hash."""
        ...

    def add(self, digest: str, owner: KeyOwner) -> None:
        """Give the owner the key of this hash."""
        ...

    def remove(self, digest: str) -> None:
        """Take the key of this hash from its owner."""
        ...

    def __str__(self) -> str:
        """Where the hashes are kept."""
        ...


def run(options: argparse.Namespace) -> int:
    """Run `tandem keys`; raises a TandemError."""
    keys = _opened(options)
    if options.action != "add" and (options.operator or options.metrics):
        raise InvalidRequest("--operator and --metrics belong to `tandem keys add`")
    if options.action == "list":
        for digest, owner in sorted(keys.keys().items(), key=_order):
            print(f"{digest[:_SHOWN]}  {owner.right:8}  {owner.name}")
    elif options.action == "add":
        owner, key = _new_owner(options), new_key()
        keys.add(hash_of(key), owner)
        print(key, flush=True)  # alone on stdout, for scripts
        print(_about(owner, hash_of(key), keys), file=sys.stderr)
    elif options.name is None:
        raise InvalidRequest("`tandem keys remove` needs the beginning of a hash")
    else:
        digest = _named(keys.keys(), options.name)
        keys.remove(digest)
        print(f"{digest[:_SHOWN]} removed")
    return 0


class _RedisKeys:
    """The keys in Redis. Each change has a connection of its own."""

    def __init__(self, url: str, tls: RedisTlsConfig | None) -> None:
        self._config = DirectoryConfig(url=url)
        self._tls = tls

    def __str__(self) -> str:
        return "Redis"  # its address may have a password

    def keys(self) -> dict[str, KeyOwner]:
        async def read(directory: Directory) -> dict[str, KeyOwner]:
            _, found = await directory.api_keys()
            return {
                digest: KeyOwner(name, right)
                for right, owners in found.items()
                for digest, name in owners.items()
            }

        return asyncio.run(self._with(read))

    def add(self, digest: str, owner: KeyOwner) -> None:
        asyncio.run(
            self._with(lambda directory: directory.add_api_key(digest, owner.name, owner.right))
        )

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


def _new_owner(options: argparse.Namespace) -> KeyOwner:
    """The owner whom the options name; raises InvalidRequest unless that is one."""
    given: dict[Right, str | None] = {
        "tenant": options.name,
        "operator": options.operator,
        "metrics": options.metrics,
    }
    owners = [KeyOwner(name, right) for right, name in given.items() if name is not None]
    if len(owners) != 1:
        raise InvalidRequest("`tandem keys add` needs a name: TENANT, --operator or --metrics")
    return check_owner(owners[0])


def _about(owner: KeyOwner, digest: str, keys: Keys) -> str:
    """What a new key opens, where it is kept, and how it is used."""
    return (
        f"{owner.name}: this key opens {OPENS[owner.right]}.\n"
        f"Store it now: {keys} keeps its hash alone, as {digest[:_SHOWN]}.\n"
        f"To use it, {_USE[owner.right]}."
    )


def _order(item: tuple[str, KeyOwner]) -> tuple[str, ...]:
    digest, owner = item
    return owner.right, owner.name, digest


def _named(keys: Iterable[str], prefix: str) -> str:
    """The only hash with that prefix; raises NotFound or InvalidRequest."""
    found = [digest for digest in keys if digest.startswith(prefix.lower())]
    if len(prefix) < _LEAST_PREFIX or len(found) > 1:
        raise InvalidRequest(f"{prefix!r} is too short: give more digits of the hash")
    if not found:
        raise NotFound(f"there is no key whose hash begins with {prefix!r}")
    return found[0]
