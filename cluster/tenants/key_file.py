"""Changes a file of hashed keys in one step, so that a router never reads half of it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from cluster.discovery.stored_values import StoredKey
from cluster.tenants.hashed_keys import SECTIONS, KeyOwner, read_keys
from engine.errors import ConfigError


class KeyFile:
    """A file with the owner of each hashed key. One process changes it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def keys(self) -> dict[str, KeyOwner]:
        """Owner by hash; raises ConfigError if the file is wrong."""
        return read_keys(self._path)

    def unsealed(self) -> list[StoredKey]:
        """Entries that no router accepts: none, because the mode of the file protects it."""
        return []

    def add(self, digest: str, owner: KeyOwner) -> None:
        """Give the owner the key of this hash; makes the file if there is none."""
        with self._locked():
            found = self.keys() if self._path.exists() else {}
            self._write({**found, digest: owner})

    def remove(self, digest: str) -> None:
        """Remove the key of this hash."""
        with self._locked():
            self._write({key: owner for key, owner in self.keys().items() if key != digest})

    def _write(self, keys: dict[str, KeyOwner]) -> None:
        document: dict[str, dict[str, list[str]]] = {"tenants": {}}
        for digest, owner in keys.items():
            names = document.setdefault(SECTIONS[owner.right], {})
            names.setdefault(owner.name, []).append(digest)
        mode = self._path.stat().st_mode & 0o777 if self._path.exists() else 0o600
        written = tempfile.NamedTemporaryFile(  # noqa: SIM115 - it becomes the file itself
            "w", dir=self._path.parent, prefix=f".{self._path.name}.", delete=False
        )
        try:
            with written:
                yaml.safe_dump(document, written, width=200)
                os.fchmod(written.fileno(), mode)
            Path(written.name).replace(self._path)
        except BaseException:
            Path(written.name).unlink(missing_ok=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield
            finally:
                os.close(folder)
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be changed: {error.strerror}") from None
