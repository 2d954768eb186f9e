"""The section `security`: what tells members of the cluster from others."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from protos.wire.secret import ClusterSecret


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """What tells members of the cluster from others."""

    secret_file: str | None = None
    """The file with the cluster's secret, which `tandem secret` makes; the same on every host.
    `tandem serve` on one machine makes a secret at its start; elsewhere the file is required.
    """

    def read_secret(self) -> ClusterSecret:
        """The secret in the file; raises ConfigError."""
        if self.secret_file is None:
            raise ConfigError("security.secret_file is not set; `tandem secret FILE` makes a file")
        return ClusterSecret.read(self.secret_file)
