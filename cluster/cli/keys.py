"""`tandem keys`: makes, lists and removes API keys, in a file or in Redis.

A key is shown once, when it is made. Only its hash is stored; in Redis with a seal of the cluster's
secret.
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
from cluster.discovery.stored_values import StoredKey
from cluster.tenants.hashed_keys import OPENS, KeyOwner, check_owner, hash_of, new_key
from cluster.tenants.key_file import KeyFile
from cluster.tenants.operator_key import VARIABLE
from engine.errors import InvalidRequest, NotFound
from protos.wire.secret import ClusterSecret

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

    def unsealed(self) -> list[StoredKey]:
        """The entries that no router accepts."""
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
        for entry in keys.unsealed():
            note = "(no seal: refused; remove it, and add a new key)"
            print(
                f"{_shown(entry.digest[:_SHOWN])}  {entry.right:8}  {_shown(entry.owner)}  {note}"
            )
    elif options.action == "add":
        owner, key = _new_owner(options), new_key()
        keys.add(hash_of(key), owner)
        print(key, flush=True)  # alone on stdout, for scripts
        print(_about(owner, hash_of(key), keys), file=sys.stderr)
    elif options.name is None:
        raise InvalidRequest("`tandem keys remove` needs the beginning of a hash")
    else:
        unsealed = [entry.digest for entry in keys.unsealed()]
        digest = _named({*keys.keys(), *unsealed}, options.name)
        keys.remove(digest)
        print(f"{digest[:_SHOWN]} removed")
    return 0


class _RedisKeys:
    """The keys in Redis. Each change has a connection of its own."""

    def __init__(self, url: str, secret: ClusterSecret, tls: RedisTlsConfig | None) -> None:
        self._config = DirectoryConfig(url=url)
        self._secret = secret
        self._tls = tls

    def __str__(self) -> str:
        return "Redis"  # its address may have a password

    def keys(self) -> dict[str, KeyOwner]:
        entries = [entry for entry in self._entries() if entry.sealed]
        return {entry.digest: KeyOwner(entry.owner, entry.right) for entry in entries}

    def unsealed(self) -> list[StoredKey]:
        return [entry for entry in self._entries() if not entry.sealed]

    def _entries(self) -> list[StoredKey]:
        return asyncio.run(self._with(lambda directory: directory.api_keys()))[1]

    def add(self, digest: str, owner: KeyOwner) -> None:
        asyncio.run(
            self._with(lambda directory: directory.add_api_key(digest, owner.name, owner.right))
        )

    def remove(self, digest: str) -> None:
        asyncio.run(self._with(lambda directory: directory.remove_api_key(digest)))

    async def _with(self, act: Callable[[Directory], Awaitable[T]]) -> T:
        directory = Directory.connect(self._config, self._secret, self._tls)
        try:
            return await act(directory)
        finally:
            await directory.close()


def _opened(options: argparse.Namespace) -> Keys:
    """The store of keys that the options name; raises a TandemError."""
    if options.secret_file is not None and options.redis is None:
        raise InvalidRequest("--secret-file belongs to --redis")
    if options.file is not None:
        return KeyFile(Path(options.file))
    tls = RedisTlsConfig(authority=tls_ca(options))
    if options.redis is not None:
        if options.secret_file is None:
            raise InvalidRequest(
                "keys in Redis are sealed: name the cluster's secret (security.secret_file) "
                "with --secret-file FILE"
            )
        return _RedisKeys(options.redis, ClusterSecret.read(options.secret_file), tls)
    config = load_config(options.config)
    keys, url = config.router.api_keys, config.directory.url
    if keys is None:
        raise InvalidRequest(f"{options.config} has no router.api_keys")
    if keys == KEYS_IN_REDIS and url is not None:
        return _RedisKeys(url, config.security.read_secret(), config.tls.redis or tls)
    return KeyFile(Path(keys))


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


def _shown(text: str) -> str:
    """What another process wrote, for a terminal."""
    return text if text.isprintable() else ascii(text)


def _named(keys: Iterable[str], prefix: str) -> str:
    """The only hash with that prefix; raises NotFound or InvalidRequest."""
    found = [digest for digest in keys if digest.startswith(prefix.lower())]
    if len(prefix) < _LEAST_PREFIX or len(found) > 1:
        raise InvalidRequest(f"{prefix!r} is too short: give more digits of the hash")
    if not found:
        known = "`tandem keys list` shows the hashes"
        raise NotFound(f"there is no key whose hash begins with {prefix!r}: {known}")
    return found[0]
