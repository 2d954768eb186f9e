"""A short name for a configuration: the same for the same settings, and hardly for any other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig

_DIGITS = 8


def config_version(config: TandemConfig) -> str:
    """Eight hexadecimal digits of the SHA-256 of all settings, for logs and comparisons.

    The address of a shared Redis is left out, as it may have a password in it. So is the place of
    the secret, which differs from start to start. Equal settings have one version: a default of 500
    is the same as the 500.0 of a document.
    """
    # Plain data, because a configuration without these may be one that is refused.
    shown = config.to_dict()
    shown["directory"]["url"] = None
    shown["security"] = asdict(SecurityConfig())
    # Which endpoint comes first counts, the order of other keys does not.
    settings = [config.default_endpoint, _with_floats(shown)]
    written = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:_DIGITS]


def _with_floats(value: Any) -> Any:
    """Plain data with every number as a float."""
    if isinstance(value, dict):
        return {key: _with_floats(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_floats(inner) for inner in value]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_number else value
