"""The ways in which one configuration protects less than another. Pure.

A rollout with any of them needs an operator who says so. The sections `tls` and `security` are not
among them, because a rollout keeps those of the running cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig

_EVERYBODY = "*"


def weakenings(running: TandemConfig, requested: TandemConfig) -> list[str]:
    """What the requested configuration weakens, one text for each key; empty if nothing."""
    return list(_weakenings(running.router, requested.router))


def _weakenings(before: RouterConfig, after: RouterConfig) -> Iterator[str]:
    keys = before.api_keys
    if keys is not None and keys != after.api_keys:
        became = "removed" if after.api_keys is None else f"becomes {after.api_keys}"
        yield f"router.api_keys: {keys} {became}"
    if _EVERYBODY in after.hosts and _EVERYBODY not in before.hosts:
        yield "router.hosts: opened to everybody"
    if _EVERYBODY in after.origins and _EVERYBODY not in before.origins:
        yield "router.origins: opened to everybody"
