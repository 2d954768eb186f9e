"""Decides by its API key what a call may do. All checks of keys are here.

| call | where keys are configured | where none are |
|---|---|---|
| requests, models | a tenant's key | no key |
| `/metrics` | a key of `metrics`, or an operator's key | no key |
| the console | an operator's key | no key |
| status, role, rollout, purge, stop, acts of the console | an operator's key | an operator's key |

The address of a caller counts for nothing, because a proxy on the host gives its own to all.

A key is looked up by its SHA-256 in a dict. The time of that tells nothing that helps: the caller
cannot choose the hash, so the caller cannot approach a stored hash digit by digit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from cluster.config.router import Right
from cluster.tenants.hashed_keys import KeyOwner, hash_of, read_keys
from engine.errors import ConfigError, PermissionDenied, TandemError, Unauthenticated
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

# Anthropic's clients send their key in it.
KEY_HEADER = "x-api-key"
# Promise: how soon a change of the keys counts, in a file and in Redis.
POLL_S = 1.0
# Bound: refusals are logged so often at most, so that a stranger cannot fill the log.
_LOG_EVERY_S = 1.0
_OWNERS: Mapping[Right, str] = {
    "tenant": "a tenant's key",
    "operator": "an operator's key",
    "metrics": "a key for metrics",
}
_NO_OPERATOR = (
    "no operator's key is configured: set router.api_keys and run "
    "`tandem keys add --operator NAME`, or start the router with TANDEM_OPERATOR_KEY"
)


class ApiKeys:
    """Owners by hashed key. Subclasses read the keys from a file or from Redis.

    `operators` are hashes of further operators' keys, which stay: those of the environment, and of
    the `tandem serve` that runs this router.
    """

    def __init__(
        self,
        owners: Mapping[str, KeyOwner],
        operators: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owners = owners
        self._operators = {digest: KeyOwner("local", "operator") for digest in operators}
        self._refusals = RareLog(log, "calls were refused by key", _LOG_EVERY_S, clock)

    def tenant(self, authorization: str | None) -> str:
        """The tenant of `Bearer KEY`; raises Unauthenticated or PermissionDenied."""
        missing = (
            "an API key is needed: send the header `Authorization: Bearer KEY`, "
            "or set TANDEM_API_KEY for `tandem`"
        )
        return self._holder(authorization, ("tenant",), missing)

    def operator(self, authorization: str | None) -> str:
        """The operator of `Bearer KEY`; raises Unauthenticated or PermissionDenied."""
        missing = (
            "an operator's key is needed: set TANDEM_OPERATOR_KEY, "
            "or run this as the user of `tandem serve` on its host"
        )
        return self._holder(authorization, ("operator",), missing)

    def metrics_reader(self, authorization: str | None) -> str:
        """The reader of metrics, or operator, of `Bearer KEY`; raises as `operator`."""
        missing = "a key for metrics is needed: send the header `Authorization: Bearer KEY`"
        return self._holder(authorization, ("metrics", "operator"), missing)

    def _holder(self, authorization: str | None, rights: tuple[Right, ...], missing: str) -> str:
        self._refresh()
        key = _bearer(authorization)
        digest = "" if key is None else hash_of(key)
        owner = self._operators.get(digest) or self._owners.get(digest)
        if owner is not None and owner.right in rights:
            return owner.name
        needed = _OWNERS[rights[0]]
        if owner is not None:
            refusal: TandemError = PermissionDenied(
                f"this is {_OWNERS[owner.right]}, and this call needs {needed}"
            )
        elif rights == ("operator",) and not self._has_operators():
            refusal = Unauthenticated(_NO_OPERATOR)
        else:
            refusal = Unauthenticated("this API key is not known" if key else missing)
        self._refusals.note({"reason": refusal.message, **_shown(owner)})
        raise refusal

    def _has_operators(self) -> bool:
        owners = self._owners.values()
        return bool(self._operators) or any(owner.right == "operator" for owner in owners)

    def _refresh(self) -> None:
        """Read the keys again if they changed and reading does not block for long."""


class FileKeys(ApiKeys):
    """The keys of a file of hashed keys; raises ConfigError if the file is wrong at first."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        operators: Collection[str] = (),
    ) -> None:
        self._version = _version(path)
        super().__init__(read_keys(path), operators, clock)
        self._clock = clock
        self._path = path
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
            self._owners = read_keys(self._path)
            log.info("the API keys were read again", extra={"keys": len(self._owners)})
        except ConfigError as error:
            log.error("the API keys stay as they were", extra={"reason": error.message})


def identify(keys: ApiKeys | None, authorization: str | None, named: str) -> str:
    """The tenant of a request: that of its key, or without keys the tenant that it names."""
    return named if keys is None else keys.tenant(authorization)


def authorization_of(header: Callable[[str], str | None]) -> str | None:
    """The `Authorization` of an HTTP request; without one, its `x-api-key` in that form."""
    key = header(KEY_HEADER)
    return header("authorization") or (None if key is None else f"Bearer {key}")


def check_metrics(keys: ApiKeys | None, authorization: str | None) -> None:
    """Raise Unauthenticated or PermissionDenied unless the caller may read `/metrics`."""
    if keys is not None:
        keys.metrics_reader(authorization)


def _bearer(authorization: str | None) -> str | None:
    """The key of an `Authorization` value; None if it has none."""
    scheme, _, key = (authorization or "").partition(" ")
    return (key.strip() or None) if scheme.lower() == "bearer" else None


def _shown(owner: KeyOwner | None) -> dict[str, str]:
    return {} if owner is None else {"owner": owner.name, "right": owner.right}


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
