"""The secret of a cluster: every member reads it from a file, and proves that it knows it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from engine.errors import ConfigError

log = logging.getLogger(__name__)

LEAST_BYTES: Final = 16
_MOST_BYTES = 4096
_MADE_BYTES = 32


class ClusterSecret:
    """A key for HMAC-SHA256, which no dump and no log shows."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < LEAST_BYTES:
            raise ConfigError(f"a cluster's secret must have at least {LEAST_BYTES} bytes")
        self._key = key

    def __repr__(self) -> str:
        return "ClusterSecret(…)"

    def __reduce__(self) -> str:
        raise TypeError("a cluster's secret is not pickled; its file is read where it is needed")

    @classmethod
    def read(cls, path: str | Path) -> ClusterSecret:
        """The secret in a file, without white space around it. Raises ConfigError.

        The file must not be writable by all users. It must not be readable by all users, where it
        belongs to the user of this process. Other owners, such as root for a mounted Kubernetes
        secret, choose the mode themselves, and a warning is logged.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                _check_mode(path, found)
                key = file.read(_MOST_BYTES + 1).strip()
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: no such file; `tandem secret {path}` makes one for all hosts"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path}: the secret cannot be read: {error.strerror}") from None
        if not key:
            raise ConfigError(f"{path}: the secret is empty; `tandem secret {path}` makes one")
        if not LEAST_BYTES <= len(key) <= _MOST_BYTES:
            message = f"the secret must have {LEAST_BYTES} to {_MOST_BYTES} bytes, not {len(key)}"
            raise ConfigError(f"{path}: {message}")
        return cls(key)

    def sign(self, subject: str, *parts: bytes) -> bytes:
        """The HMAC-SHA256 of the parts. A signature for one subject is none for another."""
        text = b"".join(len(part).to_bytes(4, "big") + part for part in (subject.encode(), *parts))
        return hmac.digest(self._key, text, hashlib.sha256)

    def verify(self, signature: bytes, subject: str, *parts: bytes) -> bool:
        """Whether `sign` gives this signature, in a time that tells nothing about it."""
        return hmac.compare_digest(signature, self.sign(subject, *parts))


def made(path: str | Path) -> Path:
    """Make a file with a new secret, which only this user can read. Raises ConfigError.

    A folder that is missing is made, for this user alone. A file that exists stays as it is.
    """
    path = Path(path)
    if path.exists():
        raise ConfigError(f"{path}: exists; remove it first for a new secret")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_MADE_BYTES) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: no secret can be made here: {error.strerror}") from None
    return path


def _check_mode(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path}: is not a file with a secret")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"{path}: all users may write to the secret; `chmod 600 {path}`")
    if not found.st_mode & stat.S_IROTH:
        return
    if found.st_uid == os.getuid() != 0:
        raise ConfigError(f"{path}: all users may read the secret; `chmod 600 {path}`")
    log.warning("all users of this system may read the secret", extra={"file": str(path)})
