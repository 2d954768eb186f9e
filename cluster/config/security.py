"""The section `security`: what the cluster's own processes prove to each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """What the cluster's own processes prove to each other."""

    secret_file: str | None = None
    """A file with the secret of the cluster, which every replica and router must have."""
