"""The private folder of a Ray on one machine: its sessions, sockets and logs, and its GCS's state.

Ray gives its session folders the mode 0777, so the folder around them has 0700.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from cluster.locked_folder import LockedFolder
from engine.errors import ConfigError

# A Unix socket's path has at most 107 bytes, of which Ray's names take 68.
_MOST_BYTES = 39
# Bound: how long the logs of a killed run are kept.
_KEEP_S = 86_400.0
_GCS = "gcs-"


class RayFolder:
    """The folder of all runs of this user, and the parts of it that belong to this run.

    Ray makes its sessions in `ray` below `path`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gcs = LockedFolder.make(_GCS, path)

    @classmethod
    def open(cls) -> RayFolder:
        """Make the folder, or take the user's own; raises ConfigError where it is another's."""
        path = _place()
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise ConfigError(f"{path} belongs to another user: set TMPDIR to another folder")
            path.chmod(0o700)
            sweep(path, time.time())
            _drop_dangling(path)
            return cls(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be Ray's folder: {error}") from None

    @property
    def gcs(self) -> Path:
        """The folder in which the GCS of this run keeps its state."""
        return self._gcs.path

    def close(self) -> None:
        """Remove the GCS's state."""
        self._gcs.remove()

    def remove(self, session: Path | None) -> None:
        """Remove the folder of a session with its logs, which stays where a run ends in a fault."""
        if session is not None and self.path in session.parents:
            shutil.rmtree(session, ignore_errors=True)
            _drop_dangling(self.path)


def _drop_dangling(folder: Path) -> None:
    """Remove the link to the latest session where that is gone, because Ray would keep the link."""
    latest = folder / "ray" / "session_latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def sweep(folder: Path, now: float) -> None:
    """Remove the sessions that killed runs left a day ago. `now` is in seconds since the epoch."""
    for entry in folder.glob("ray/session_*"):
        with contextlib.suppress(OSError):
            old = now - entry.lstat().st_mtime > _KEEP_S
            owner = entry.name.rpartition("_")[2]
            alive = owner.isdecimal() and Path("/proc", owner).exists()
            if old and not alive and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)


def _place() -> Path:
    """A short path, because it begins the paths of sockets."""
    name = f"tandem-{os.getuid()}"
    path = Path(tempfile.gettempdir()) / name
    return path if len(os.fsencode(path)) <= _MOST_BYTES else Path("/tmp") / name
