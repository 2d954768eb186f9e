"""The ways in which one configuration protects less than another. Pure.

A rollout with any of them needs an operator who says so. The sections `tls`, `security` and
`directory` are not among them, because a rollout keeps those of the running cluster. Bounds and
caps are not among them either, because they give no access.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig
from kv_transfer.transports.registry import AUTO, OPENS_MEMORY, WITHIN_A_HOST

_EVERYBODY = "*"
_PAGES_STAY_OPEN = (
    "Ray's pages of metrics stay open to every user of this host until `tandem serve` is started "
    "again: Ray reads only at its start whether it shows them"
)
_TLS_STAYS = (
    "the running `tls` stays, which differs from that of this configuration: only a new start of "
    "`tandem serve` changes it"
)


def weakenings(running: TandemConfig, requested: TandemConfig) -> list[str]:
    """What the requested configuration weakens, one text for each key; empty if nothing."""
    return list(_weakenings(running, requested))


def restart_notices(running: TandemConfig, requested: TandemConfig) -> list[str]:
    """What only a new start would take from the requested configuration; empty if nothing.

    `requested` is as it was requested, before a rollout keeps anything.
    """
    adds_keys = running.router.api_keys is None and requested.router.api_keys is not None
    notices = [_PAGES_STAY_OPEN] if adds_keys and running.ray.address is None else []
    return notices if running.tls == requested.tls else [*notices, _TLS_STAYS]


def _weakenings(running: TandemConfig, requested: TandemConfig) -> Iterator[str]:
    yield from _of_keys(running.router, requested.router)
    yield from _added("router.hosts", running.router.hosts, requested.router.hosts)
    yield from _added("router.origins", running.router.origins, requested.router.origins)
    before, after = running.kv.transport, requested.kv.transport
    if _protection(after) < _protection(before):
        yield f"kv.transport: {before} becomes {after}, which more processes can read"
    if requested.request_log.texts and not running.request_log.texts:
        yield "request_log.texts: operators and files get the texts of prompts and answers"


def _of_keys(before: RouterConfig, after: RouterConfig) -> Iterator[str]:
    keys = before.api_keys
    if keys is not None and keys != after.api_keys:
        became = "removed" if after.api_keys is None else f"becomes {after.api_keys}"
        yield f"router.api_keys: {keys} {became}"


def _added(key: str, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[str]:
    if _EVERYBODY in before:
        return
    if _EVERYBODY in after:
        yield f"{key}: opened to everybody"
    elif added := sorted(set(after).difference(before)):
        yield f"{key}: {', '.join(added)} added"


def _protection(transport: str) -> int:
    """The rank of a transport in docs/explanation/security.md; `auto` may cross the network."""
    if transport in WITHIN_A_HOST:
        return 3
    if transport in OPENS_MEMORY:
        return 0
    return 2 if transport == AUTO else 1
