"""The owners of hashed API keys, and the file that has them.

    tenants:
      acme: [9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08]
    operators:
      alice: [60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752]
    metrics:
      prometheus: [fd61a03af4f77d870fc21e05e7e80678095c92d808cfb3b5c279ee04c74aca13]

The keys themselves are stored nowhere. Each key has one right: a tenant's key opens requests, an
operator's key opens `tandem status`, `role`, `rollout`, `purge`, `stop`, the console and
`/metrics`, and a key of `metrics` opens `/metrics` alone.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.api.validation import is_tenant
from cluster.config.router import Right
from cluster.config.source import read_document
from engine.errors import ConfigError, InvalidRequest

SECTIONS: Mapping[Right, str] = {
    "tenant": "tenants",
    "operator": "operators",
    "metrics": "metrics",
}
# What a key of each right opens, in words.
OPENS: Mapping[Right, str] = {
    "tenant": "requests and the description of models",
    "operator": "`tandem status`, `top`, `requests`, `explain`, `role`, `rollout`, `purge`, "
    "`stop`, the console and /metrics",
    "metrics": "/metrics alone",
}
_KEY_BYTES = 32
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The owner of a key, and what the key opens."""

    name: str
    right: Right = "tenant"


def check_owner(owner: KeyOwner) -> KeyOwner:
    """Return `owner` if its name is valid; raises InvalidRequest."""
    if not is_tenant(owner.name):
        message = f"{owner.right} must be 1 to 64 characters: letters, digits and . _ -"
        raise InvalidRequest(message, field=owner.right)
    return owner


def new_key() -> str:
    """A new key of 256 random bits."""
    return f"tandem-{secrets.token_urlsafe(_KEY_BYTES)}"


def hash_of(key: str) -> str:
    """The hash under which a key is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_hash(text: object) -> bool:
    """Whether this text is the hash of a key."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def read_keys(path: Path) -> dict[str, KeyOwner]:
    """Owner by the SHA-256 of its key; raises ConfigError."""
    if not path.exists():
        raise ConfigError(f"router.api_keys: there is no file {path}; `tandem keys add` makes it")
    document = read_document(path)
    known = ", ".join(f"`{name}`" for name in SECTIONS.values())
    if unknown := sorted(str(name) for name in document if name not in SECTIONS.values()):
        raise ConfigError(f"router.api_keys: {path}: `{unknown[0]}` is none of {known}")
    if not document:
        raise ConfigError(f"router.api_keys: {path} has none of {known}")
    found: dict[str, KeyOwner] = {}
    for right, section in SECTIONS.items():
        listed = document.get(section, {})
        if not isinstance(listed, Mapping):
            raise ConfigError(f"router.api_keys: {path}: `{section}` must have names with hashes")
        for name, hashes in listed.items():
            owner = _owner(path, name, right)
            for digest in _hashes(path, owner, hashes):
                if found.setdefault(digest, owner) != owner:
                    raise ConfigError(f"router.api_keys: {path}: two owners have the same key")
    return found


def _owner(path: Path, name: object, right: Right) -> KeyOwner:
    try:
        return check_owner(KeyOwner(name if isinstance(name, str) else "", right))
    except InvalidRequest as error:
        raise ConfigError(f"router.api_keys: {path}: {error.message}") from None


def _hashes(path: Path, owner: KeyOwner, hashes: object) -> list[str]:
    listed = hashes if isinstance(hashes, list) else []
    if not listed or not all(is_hash(one) for one in listed):
        raise ConfigError(
            f"router.api_keys: {path}: {owner.name} needs a list of SHA-256 in hexadecimal digits"
        )
    return listed
