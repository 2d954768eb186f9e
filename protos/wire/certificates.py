"""Certificates from PEM files: read, proved to fit together, and made into TLS contexts.

The proof is a TLS handshake in memory: it finds a foreign key, an expired certificate, another
authority and another name as a peer would. Every fault is a ConfigError that names the file.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError
from tandem_client.authorities import read, trust

# Bound: the turns of a handshake in memory; TLS 1.3 needs three.
_TURNS = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """The files of a certificate, with the chain behind it, and of its key."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The certificate of a front end: a context for asyncio, and PEM texts for gRPC.

    `name` is a name or address that it is valid for; `expires` is its last moment, in words.
    """

    context: ssl.SSLContext
    chain: bytes
    key: bytes
    name: str | None
    expires: str


@dataclass(frozen=True, slots=True)
class MemberContexts:
    """Both contexts of a member: each side has to show a certificate of the authority."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    expires: str


def server_certificate(identity: Identity) -> ServerCertificate:
    """Read a front end's certificate; clients need none. Raises ConfigError."""
    chain, key = read(identity.certificate), read(identity.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.options |= ssl.OP_NO_RENEGOTIATION
    server.set_alpn_protocols(["http/1.1"])
    _show(server, identity)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trusts this very certificate
    trust(client, identity.certificate)
    shown = _prove(server, client, None, identity.certificate)
    names = shown.get("subjectAltName", ())
    name = next((str(value).replace("*", "any", 1) for _, value in names), None)
    return ServerCertificate(server, chain, key, name, str(shown["notAfter"]))


def member_contexts(identity: Identity, authority: str, name: str) -> MemberContexts:
    """Contexts for connections between members of a cluster; raises ConfigError.

    The certificate must be valid for `name`, for servers and for clients.
    """
    server, client = (
        _between_members(ssl.SSLContext(kind), identity, authority)
        for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    server.verify_mode = ssl.CERT_REQUIRED
    # A resumed session would not show its certificate again.
    server.num_tickets = 0
    shown = _prove(server, client, name, identity.certificate)
    return MemberContexts(server, client, str(shown["notAfter"]))


def client_context(
    authority: str | None = None, identity: Identity | None = None
) -> ssl.SSLContext:
    """A context that verifies servers and their names; raises ConfigError.

    Without `authority` it trusts what the system trusts. `identity` is shown to servers that ask.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authority is None:
        context.load_default_certs()
    else:
        trust(context, authority)
    if identity is not None:
        _show(context, identity)
    return context


def _between_members(context: ssl.SSLContext, identity: Identity, authority: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    trust(context, authority)
    _show(context, identity)
    return context


def _show(context: ssl.SSLContext, identity: Identity) -> None:
    """Load a certificate and its key; never asks for the password of an encrypted key."""
    read(identity.key)
    trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), identity.certificate)
    try:
        context.load_cert_chain(identity.certificate, identity.key, password="")
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            reason = f"is not the key of {identity.certificate}"
        else:
            reason = "holds no key in PEM form, or an encrypted one"
        raise ConfigError(f"{identity.key}: {reason}") from None


def _prove(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str | None, path: str
) -> dict[str, Any]:
    """Shake hands in memory; returns the server's certificate. Raises ConfigError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    shaking = list(ends)
    try:
        for _ in range(_TURNS):
            shaking = [end for end in shaking if not _shook(end)]
            if not shaking:
                return dict(ends[0].getpeercert() or {})
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"{path}: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise ConfigError(f"{path}: no handshake: {error.reason}") from None
    raise ConfigError(f"{path}: no handshake")


def _shook(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
