"""The authorities whose certificates a connection trusts, from files in PEM form."""

from __future__ import annotations

import ssl
from pathlib import Path

from tandem_client.errors import ConfigError


def read(path: str) -> bytes:
    """The content of a file; raises ConfigError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def read_authority(path: str) -> bytes:
    """The certificates in a file; raises ConfigError where it has none."""
    trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), path)
    return read(path)


def trust(context: ssl.SSLContext, path: str) -> None:
    """Let `context` trust the certificates in a file; raises ConfigError where it has none."""
    read(path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ConfigError(f"{path}: holds no certificate in PEM form") from None


def system_roots() -> bytes:
    """The certificates that this system trusts; raises ConfigError where it has no file of them."""
    path = ssl.get_default_verify_paths().cafile
    if path is None or not Path(path).is_file():
        raise ConfigError("this system has no file of authorities: name an authority")
    return read(path)
