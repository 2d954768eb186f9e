"""The section `tls`: certificates of the front ends, between replicas, and for Redis.

All values are paths of PEM files, which processes read again when they change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import require
from engine.errors import ConfigError
from protos.wire.certificates import (
    Identity,
    MemberContexts,
    client_context,
    member_contexts,
    server_certificate,
)
from protos.wire.tls import Reloading, member_tls


@dataclass(frozen=True, slots=True)
class CertificateConfig:
    """A certificate that clients see."""

    certificate: str
    """The file of the certificate, with the chain behind it."""
    key: str
    """The file of its key, not encrypted."""

    @property
    def identity(self) -> Identity:
        """The two files."""
        return Identity(self.certificate, self.key)


@dataclass(frozen=True, slots=True)
class InternalTlsConfig:
    """Mutual TLS between routers and replicas."""

    certificate: str
    """The file of a certificate that is valid for `name`, for servers and for clients."""
    key: str
    """The file of its key, not encrypted."""
    authority: str
    """The file of the authority that signed the certificates of all members. No other is trusted.
    """
    name: str = "tandem.internal"
    """The DNS name in the certificates of all members."""

    def __post_init__(self) -> None:
        require(bool(self.name), "name must not be empty")

    @property
    def identity(self) -> Identity:
        """The files of the certificate and the key."""
        return Identity(self.certificate, self.key)

    def contexts(self) -> Reloading[MemberContexts]:
        """The contexts of both sides, which follow the files; raises ConfigError."""
        return member_tls(self.identity, self.authority, self.name)


@dataclass(frozen=True, slots=True)
class RedisTlsConfig:
    """How a `rediss://` server is verified, and what it is shown."""

    authority: str | None = None
    """The file of the authority of the server; without it, the authorities of the system."""
    certificate: str | None = None
    """The file of a certificate to show, where Redis asks for one."""
    key: str | None = None
    """The file of the key of that certificate, not encrypted."""

    def __post_init__(self) -> None:
        both = (self.certificate is None) == (self.key is None)
        require(both, "certificate and key must be given together")

    @property
    def identity(self) -> Identity | None:
        """The files of the certificate and the key, if there are any."""
        if self.certificate is None or self.key is None:
            return None
        return Identity(self.certificate, self.key)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Which connections are encrypted; a part that is left out is not."""

    front_ends: CertificateConfig | None = None
    """The certificate of HTTP and gRPC; with it, both refuse plain connections."""
    internal: InternalTlsConfig | None = None
    """The certificates between routers and replicas; with them, members refuse everyone else."""
    redis: RedisTlsConfig | None = None
    """The certificates for a Redis at a `rediss://` address."""

    def located(self) -> TlsConfig:
        """The section with absolute paths."""
        front, internal, redis = self.front_ends, self.internal, self.redis
        if front is not None:
            front = replace(front, certificate=_at(front.certificate), key=_at(front.key))
        if internal is not None:
            internal = replace(
                internal,
                certificate=_at(internal.certificate),
                key=_at(internal.key),
                authority=_at(internal.authority),
            )
        if redis is not None:
            given = {"authority": redis.authority, "certificate": redis.certificate}
            given |= {"key": redis.key}
            redis = replace(redis, **{name: _at(path) for name, path in given.items() if path})
        return TlsConfig(front, internal, redis)

    def check(self) -> None:
        """Read all files and prove that they fit together; ConfigError names the key and file."""
        if (front := self.front_ends) is not None:
            with _under("tls.front_ends"):
                server_certificate(front.identity)
        if (internal := self.internal) is not None:
            with _under("tls.internal"):
                member_contexts(internal.identity, internal.authority, internal.name)
        if (redis := self.redis) is not None:
            with _under("tls.redis"):
                client_context(redis.authority, redis.identity)


class _under:  # noqa: N801
    """Names the part of the section in a ConfigError."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConfigError):
            raise ConfigError(f"{self._key}: {error.message}") from None


def _at(path: str) -> str:
    return str(Path(path).expanduser().absolute())
