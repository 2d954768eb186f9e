"""The operator's key of this user: from the environment, or from the `tandem serve` that runs.

`tandem serve` makes a key when it starts, and writes it to a file that its user alone can read:

    ~/.tandem/run/<host name>_<address>:<port>      mode 0600, in folders of mode 0700

`tandem status`, `role`, `rollout`, `purge` and `stop` read it from there. Another user of the host
cannot. The file is locked while its `tandem serve` runs, so that leftovers of a kill -9 are told
apart and removed by the next start.

A command sends the key only to the address that the router was started on, where no other user can
listen while it runs. A stranger who listens there after a kill -9 gets a key that opens nothing any
more, since each start makes another. So the key is sent to no name that a name server resolves.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import IO
from urllib.parse import quote

from cluster.locked_folder import sweep
from cluster.tenants.hashed_keys import hash_of, new_key
from engine.errors import ConfigError

VARIABLE = "TANDEM_OPERATOR_KEY"
_LEAST_CHARACTERS = 16


class OperatorKey:
    """The operator's key of one `tandem serve`: that of the environment, or a new one."""

    def __init__(self) -> None:
        self.key = from_environment() or new_key()
        self._written: IO[str] | None = None
        self._path: Path | None = None

    @property
    def digest(self) -> str:
        """The hash, which is no secret."""
        return hash_of(self.key)

    def write(self, address: str) -> None:
        """Write the key for commands that call the router at `address`; raises ConfigError.

        The address may be that of all interfaces.
        """
        try:
            folder = _folder()
            for made in (folder.parent, folder):
                made.mkdir(mode=0o700, exist_ok=True)
            _keep_private(folder)
            # What was killed left its lock free; hosts may share a home.
            sweep(folder, f"{quote(socket.gethostname())}_")
            written = tempfile.NamedTemporaryFile(  # noqa: SIM115 - made with 0600; becomes the file
                "w", dir=folder, prefix=".", delete=False
            )
            fcntl.flock(written, fcntl.LOCK_EX)
            written.write(f"{self.key}\n")
            written.flush()
            self._path = folder / _name(address)
            Path(written.name).replace(self._path)
        except OSError as error:
            raise ConfigError(f"no key can be stored: {error.strerror}") from None
        self._written = written

    def remove(self) -> None:
        """Remove the file, unless another `tandem serve` has written its own. Idempotent."""
        path, written, self._path, self._written = self._path, self._written, None, None
        if path is None or written is None:
            return
        with written, contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(written.fileno())):
                path.unlink()


def operator_key(address: str) -> str | None:
    """The operator's key for the router at `address`; None if this user has none.

    Raises ConfigError if that of the environment is unusable.
    """
    if key := from_environment():
        return key
    addresses = (address, *_all_interfaces(address))
    return next((key for one in addresses if (key := _read(one))), None)


def dialled(address: str) -> str:
    """The address to call: `localhost` as a number, since another user may have its other one."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host == "localhost" else address


def from_environment() -> str | None:
    """The key in TANDEM_OPERATOR_KEY, if it is set; raises ConfigError for an unusable one."""
    key = os.environ.get(VARIABLE, "").strip()
    if not key:
        return None
    if len(key) < _LEAST_CHARACTERS or not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{VARIABLE} must have {_LEAST_CHARACTERS} ASCII characters or more")
    return key


def digest_from_environment() -> str | None:
    """The hash of the key in TANDEM_OPERATOR_KEY, if it is set; raises ConfigError."""
    key = from_environment()
    return None if key is None else hash_of(key)


def _folder() -> Path:
    """The folder of the files; raises OSError for a user without a home."""
    try:
        return Path.home() / ".tandem" / "run"
    except RuntimeError as error:
        raise FileNotFoundError(0, str(error)) from None


def _name(address: str) -> str:
    """The file for a router. Hosts may share a home, so their names are in it."""
    return quote(f"{socket.gethostname()}_{dialled(address)}", safe=":[]")


def _all_interfaces(address: str) -> tuple[str, ...]:
    """The addresses of all interfaces that include this one, where it is of this host."""
    host, _, port = dialled(address).rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((host, 0))
    except (OSError, ValueError):
        return ()
    both = (f"[::]:{port}",)
    return both if family is socket.AF_INET6 else (f"0.0.0.0:{port}", *both)


def _read(address: str) -> str | None:
    """The key for that router, from a file that is this user's and closed to all others."""
    try:
        with (_folder() / _name(address)).open() as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                return None
            return file.read(1024).strip() or None
    except (OSError, ValueError):
        return None


def _keep_private(folder: Path) -> None:
    """Close the folder to others; raises OSError where another user owns it."""
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(0, "it belongs to another user")
    folder.chmod(0o700)
