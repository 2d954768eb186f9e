"""What to do where no call reaches a router. The error of the call itself names no option."""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_client import RouterAddress

# Bound: the time of the extra handshake.
_TIMEOUT_S = 2.0
_NAME_AUTHORITY = "name the file of its authority with --tls-ca or TANDEM_TLS_CA"
_CLOSED = "nothing listens there: start `tandem serve`, or name another address"
# OpenSSL's codes of a certificate whose authority is not among the trusted ones.
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)


async def connect_hint(
    target: str, trusting: ssl.SSLContext | None, scheme: str, name: str | None = None
) -> str | None:
    """The hint, after one more handshake; None where neither TLS nor a closed port is the reason.

    `target` is host:port. `trusting` is what the failed call trusted, or None if it had no TLS.
    `scheme` is that of addresses with TLS. The certificate is of `name`, else of the host.
    """
    try:
        await _shake_hands(target, trusting or _trusting_all(), name)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return f"its certificate is not trusted: {_NAME_AUTHORITY}"
        return f"its certificate is refused: {error.verify_message}"
    except ssl.SSLError:
        plain = f"it speaks no TLS: leave out {scheme}:// and --tls-ca (TANDEM_TLS_CA)"
        return None if trusting is None else plain
    except (OSError, ValueError) as error:
        # A name with several addresses has an error without errno, whose text has all of them.
        return _CLOSED if f"[Errno {errno.ECONNREFUSED}]" in str(error) else None
    secure = f"it speaks TLS: write {scheme}://{target}, and {_NAME_AUTHORITY}"
    return secure if trusting is None else None


async def router_hint(address: RouterAddress) -> str | None:
    """The hint for a call to a router's gRPC front end."""
    trusting = None
    if address.roots is not None:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.load_verify_locations(cadata=address.roots.decode(errors="replace"))
    return await connect_hint(address.target, trusting, "grpcs", address.name)


async def _shake_hands(target: str, context: ssl.SSLContext, name: str | None) -> None:
    """Connect and hang up; raises OSError, as ssl.SSLError and TimeoutError are."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    async with asyncio.timeout(_TIMEOUT_S):
        _, writer = await asyncio.open_connection(
            host, int(port), ssl=context, server_hostname=name or host
        )
    writer.transport.abort()


def _trusting_all() -> ssl.SSLContext:
    """A context for a handshake that carries nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
