"""The section `security`: what tells members of the cluster from others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """What tells members of the cluster from others."""

    secret_file: str | None = None
    """The file with the cluster's secret, which `tandem secret` makes; the same on every host.
    `tandem serve` on one machine makes a secret at its start; elsewhere the file is required.
    """
