"""The ways in which one configuration protects less than another. Pure.

A rollout with any of them needs an operator who says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cluster.config.schema import TandemConfig

# Sections in which every value that is set protects something.
_PROTECTING = ("tls", "security")
# Values that may be replaced: a renewed certificate weakens nothing.
_RENEWED = ("certificate", "key")
_OPEN_LISTS = ("hosts", "origins")
_EVERYBODY = "*"


def weakenings(running: TandemConfig, requested: TandemConfig) -> list[str]:
    """What the requested configuration weakens, one text for each key; empty if nothing."""
    return list(_weakenings(running.to_dict(), requested.to_dict()))


def _weakenings(running: Mapping[str, Any], requested: Mapping[str, Any]) -> Iterator[str]:
    before, after = running["router"], requested["router"]
    keys = before["api_keys"]
    if keys is not None and keys != after["api_keys"]:
        yield _change("router.api_keys", keys, after["api_keys"])
    for name in _OPEN_LISTS:
        opened = _EVERYBODY in after.get(name, ())
        if opened and _EVERYBODY not in before.get(name, ()):
            yield f"router.{name}: opened to everybody"
    for section in _PROTECTING:
        left = dict(_values(section, requested.get(section)))
        for key, value in _values(section, running.get(section)):
            renewed = key.rpartition(".")[2] in _RENEWED
            if key not in left or (left[key] != value and not renewed):
                yield _change(key, value, left.get(key))


def _values(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values that are set below a key, with their dotted keys."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _values(f"{key}.{name}", inner)
    elif value is not None:
        yield key, value


def _change(key: str, before: Any, after: Any) -> str:
    return f"{key}: {before} removed" if after is None else f"{key}: {before} becomes {after}"
