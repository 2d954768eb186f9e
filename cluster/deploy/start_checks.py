"""What `tandem serve` checks before it starts anything."""

from __future__ import annotations

from pathlib import Path

from cluster.config.router import KEYS_IN_REDIS
from cluster.config.schema import TandemConfig
from cluster.rpc.membership import Membership
from cluster.tenants.hashed_keys import read_keys
from engine.errors import ConfigError


def check_files(config: TandemConfig) -> None:
    """Raise ConfigError where a file is missing or wrong, or where several hosts lack a setting.

    On several hosts the keys and certificates of the front ends may be on other hosts.
    """
    several = config.ray.address is not None
    if several and config.directory.url is None:
        raise ConfigError("ray.address needs directory.url: a Redis that all nodes reach")
    if several and config.security.secret_file is None:
        raise ConfigError(
            "ray.address needs security.secret_file, which every node has; "
            "`tandem secret FILE` makes one"
        )
    if config.security.secret_file is not None:
        Membership.of(config)
    if several:
        return
    config.tls.check()
    keys = config.router.api_keys
    if keys is not None and keys != KEYS_IN_REDIS:
        read_keys(Path(keys))
