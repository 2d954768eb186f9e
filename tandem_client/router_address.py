"""Where a router's gRPC front end is, and how its certificate is verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio

from tandem_client.authorities import read_authority, system_roots
from tandem_client.errors import ConfigError

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
        return cls(target, system_roots() if authority is None else read_authority(authority))

    def __str__(self) -> str:
        return self.target if self.roots is None else f"grpcs://{self.target}"


Address = str | RouterAddress


def open_channel(
    address: Address,
    options: Sequence[tuple[str, Any]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.aio.Channel:
    """A channel to a router; `credentials` replace the address's own."""
    known = address if isinstance(address, RouterAddress) else RouterAddress.at(address)
    if credentials is None and known.roots is not None:
        credentials = grpc.ssl_channel_credentials(known.roots)
    if credentials is None:
        return grpc.aio.insecure_channel(known.target, list(options))
    named = [] if known.name is None else [("grpc.ssl_target_name_override", known.name)]
    return grpc.aio.secure_channel(known.target, credentials, [*options, *named])
