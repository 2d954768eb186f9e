"""Where a router's gRPC front end is, and how its certificate is verified."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from cluster.client.connect_hint import connect_hint
from engine.errors import ConfigError
from protos.wire.certificates import ServerCertificate, read, read_authority

_TLS = {"grpcs": True, "https": True, "grpc": False, "http": False}


@dataclass(frozen=True, slots=True)
class RouterAddress:
    """`target` is host:port. With `roots` (PEM) the connection is TLS, and only these are trusted.

    The certificate must be valid for `name`; without a name, for the target's host.
    """

    target: str
    roots: bytes | None = None
    name: str | None = None

    @classmethod
    def at(cls, address: str, authority: str | None = None) -> Self:
        """`host:port`, with TLS if `authority` (a PEM file) is given; raises ConfigError.

        `grpcs://` or `https://` in front always means TLS, and without `authority` the system's
        authorities are trusted. `grpc://` or `http://` never means TLS.
        """
        scheme, found, target = address.rpartition("://")
        if found and scheme not in _TLS:
            raise ConfigError(f"{address!r} is no address: expected host:port or grpcs://host:port")
        if not _TLS.get(scheme, authority is not None):
            return cls(target)
        return cls(target, _system_roots() if authority is None else read_authority(authority))

    @classmethod
    def of_own(cls, target: str, certificate: ServerCertificate) -> Self:
        """A front end that shows exactly this certificate."""
        return cls(target, certificate.chain, certificate.name)

    async def connect_hint(self) -> str | None:
        """What to do where a call failed because of TLS or a closed port, else None."""
        trusting = None
        if self.roots is not None:
            trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trusting.load_verify_locations(cadata=self.roots.decode(errors="replace"))
        return await connect_hint(self.target, trusting, "grpcs", self.name)

    def __str__(self) -> str:
        return self.target if self.roots is None else f"grpcs://{self.target}"


Address = str | RouterAddress


def open_channel(
    address: Address,
    options: Sequence[tuple[str, Any]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.aio.Channel:
    """A channel to a router; `credentials` come before those of the address."""
    known = address if isinstance(address, RouterAddress) else RouterAddress.at(address)
    if credentials is None and known.roots is not None:
        credentials = grpc.ssl_channel_credentials(known.roots)
    if credentials is None:
        return grpc.aio.insecure_channel(known.target, list(options))
    named = [] if known.name is None else [("grpc.ssl_target_name_override", known.name)]
    return grpc.aio.secure_channel(known.target, credentials, [*options, *named])


def _system_roots() -> bytes:
    path = ssl.get_default_verify_paths().cafile
    if path is None or not Path(path).is_file():
        raise ConfigError("this system has no file of authorities: name one with --tls-ca")
    return read(path)
