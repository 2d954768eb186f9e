"""Reads a configuration: a YAML file, with dotted overrides on top."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from engine.errors import ConfigError

_POLL_S = 0.5


def read_document(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError names the line and column of what is broken."""
    try:
        with path.open(encoding="utf-8") as file:
            document = yaml.load(file, _StrictLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "broken YAML"
        raise ConfigError(f"{path}: {where}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: broken YAML: {str(error).splitlines()[0]}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected a mapping, not {type(document).__name__}")
    return document


def await_version(path: Path, checksum: str, timeout_s: float) -> None:
    """Wait until a file has that checksum, where something else brings the file to this host.

    `checksum` is the SHA-256 of its text, less white space at both ends. ConfigError if it does not
    come.
    """
    until_s = time.monotonic() + timeout_s
    while _checksum(path) != checksum:
        if time.monotonic() >= until_s:
            raise ConfigError(f"{path}: is not the one that was deployed, after {timeout_s:g} s")
        time.sleep(_POLL_S)


def _checksum(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes().strip()).hexdigest()
    except OSError:
        return None


def merge_overrides(document: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """The document with each dotted key set; an empty section is the same as none."""
    merged: dict[str, Any] = {
        str(key): dict(value) if isinstance(value, Mapping) else value
        for key, value in document.items()
        if value is not None
    }
    for key, value in overrides.items():
        *sections, leaf = key.split(".")
        target = merged
        for section in sections:
            inner = target.get(section)
            # A section that is not a mapping is left for the check to refuse by name.
            if inner is not None and not isinstance(inner, Mapping):
                break
            target[section] = dict(inner or {})
            target = target[section]
        else:
            target[leaf] = value
    return merged


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, which YAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return super().construct_mapping(node, deep=deep)
