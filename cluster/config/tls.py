"""The section `tls`: the certificates of each kind of connection, as paths of files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CertificateConfig:
    """A certificate and its key, in PEM."""

    certificate: str
    """The file of the certificate and its chain."""
    key: str
    """The file of the private key."""


@dataclass(frozen=True, slots=True)
class InternalTlsConfig:
    """The certificate with which routers and replicas meet each other."""

    certificate: str
    """The file of the certificate and its chain."""
    key: str
    """The file of the private key."""
    authority: str
    """The file of the authority that signed the certificates of all of them."""
    name: str = "tandem.internal"
    """The DNS name that every certificate must have."""


@dataclass(frozen=True, slots=True)
class RedisTlsConfig:
    """How the Redis of a `rediss://` address is checked."""

    authority: str | None = None
    """The file of the authority of Redis; without it, the public authorities."""
    certificate: str | None = None
    """The file of the client's certificate, where Redis asks for one."""
    key: str | None = None
    """The file of its private key."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The certificates of each kind of connection."""

    front_ends: CertificateConfig | None = None
    """The certificate of HTTP and gRPC; without it they are in plain text."""
    internal: InternalTlsConfig | None = None
    """The certificate between routers and replicas; without it they speak plain text."""
    redis: RedisTlsConfig | None = None
    """How Redis is checked."""
