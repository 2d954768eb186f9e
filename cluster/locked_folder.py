"""Files and folders that are locked while their process lives.

So what a killed process left is told apart from what a living process uses.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Self

# Bound: a folder that is younger may be about to be locked.
_SWEEP_AGE_S = 60.0


class LockedFolder:
    """A folder that only this user can open; `path` is where it is.

    The next one of the same prefix removes the folders of processes that were killed: those are
    not locked. Cleaners of temporary files pass locked folders by.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls, prefix: str, parent: Path | None = None) -> Self:
        """Make a folder in `parent`, else where temporary files are; raises OSError."""
        parent = parent or Path(tempfile.gettempdir())
        sweep(parent, prefix, _SWEEP_AGE_S)
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # made with mode 0700
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the folder with all that is in it. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep(parent: Path, prefix: str, age_s: float = 0.0) -> None:
    """Remove this user's files and folders of a prefix that are not locked and have that age."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = path.stat(follow_symlinks=False)
            old = time.time() - found.st_mtime >= age_s
            if not old or found.st_uid != os.getuid() or _is_locked(path):
                continue
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
