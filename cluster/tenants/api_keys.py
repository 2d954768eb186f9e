"""Finds the tenant of a request by its API key.

The keys themselves are stored nowhere. A file has their SHA-256, several per tenant.

    tenants:
      acme: [9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08]

`tandem keys add` makes a key, and `printf %s KEY | sha256sum` gives the hash of one. The file is
read again when it changes, without a restart. A file that is wrong leaves the keys as they were.
`cluster/tenants/redis_keys.py` has the same in Redis.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.api.validation import check_tenant
from cluster.config.source import read_document
from engine.errors import ConfigError, InvalidRequest, Unauthenticated

log = logging.getLogger(__name__)

# Promise: how soon a change of the keys counts, in a file and in Redis.
POLL_S = 1.0
_HASH = re.compile(r"[0-9a-f]{64}")


class ApiKeys:
    """Tenants by hashed key. Subclasses read the keys from a file or from Redis."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = tenants

    def tenant(self, authorization: str | None) -> str:
        """The tenant of an `Authorization` value, `Bearer KEY`; raises Unauthenticated."""
        self._refresh()
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("an API key is needed: Authorization: Bearer KEY")
        tenant = self._tenants.get(hash_of(key.strip()))
        if tenant is None:
            raise Unauthenticated("this API key is not known")
        return tenant

    def _refresh(self) -> None:
        """Read the keys again if they changed and reading does not block for long."""


class FileKeys(ApiKeys):
    """The tenants of a file of hashed keys; raises ConfigError if the file is wrong at first."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._version = _version(path)
        super().__init__(read_keys(path))
        self._path = path
        self._clock = clock
        self._polled_s = clock()

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._polled_s < POLL_S:
            return
        self._polled_s = now
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._tenants = read_keys(self._path)
            log.info("the API keys were read again", extra={"keys": len(self._tenants)})
        except ConfigError as error:
            log.error("the API keys stay as they were", extra={"reason": error.message})


def hash_of(key: str) -> str:
    """The hash under which a key is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_hash(text: object) -> bool:
    """Whether this text is the hash of a key."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def identify(keys: ApiKeys | None, authorization: str | None, named: str) -> str:
    """The tenant of a request: that of its key, or without keys the tenant that it names."""
    return named if keys is None else keys.tenant(authorization)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_keys(path: Path) -> dict[str, str]:
    """Tenant by the SHA-256 of its key; raises ConfigError."""
    if not path.exists():
        raise ConfigError(f"router.api_keys: there is no file {path}; `tandem keys add` makes it")
    listed = read_document(path).get("tenants")
    if not isinstance(listed, Mapping):
        raise ConfigError(f"router.api_keys: {path} has no `tenants`")
    found: dict[str, str] = {}
    for tenant, hashes in listed.items():
        for digest in _hashes(path, tenant, hashes):
            if found.setdefault(digest, tenant) != tenant:
                raise ConfigError(f"router.api_keys: {path}: two tenants have the same key")
    return found


def _hashes(path: Path, tenant: object, hashes: object) -> list[str]:
    try:
        name = check_tenant(tenant if isinstance(tenant, str) else "")
    except InvalidRequest as error:
        raise ConfigError(f"router.api_keys: {path}: {error.message}") from None
    listed = hashes if isinstance(hashes, list) else []
    if not listed or not all(is_hash(one) for one in listed):
        raise ConfigError(
            f"router.api_keys: {path}: {name} needs a list of SHA-256 in hexadecimal digits"
        )
    return listed
