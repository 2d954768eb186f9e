"""The secret of one run of `tandem serve` on one machine, in a folder of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

from protos.wire.secret import made

_FOLDER_PREFIX = "tandem-secret-"
_SWEEP_AGE_S = 60.0


class RunSecret:
    """A new secret, which only this user can read; `path` is its file.

    Its folder is locked while this process lives: a later run removes the folders that are not
    locked, and cleaners of temporary files pass locked folders by.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self.path = made(folder / "secret")
        self._folder = folder
        self._lock = lock

    @classmethod
    def make(cls) -> Self:
        """Make the folder and the secret; raises ConfigError."""
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))  # made with mode 0700
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(folder, lock)

    def remove(self) -> None:
        """Remove the folder. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep() -> None:
    """Remove the folders of runs that were killed before they removed them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.stat(follow_symlinks=False)
            abandoned = time.time() - found.st_mtime > _SWEEP_AGE_S
            if abandoned and found.st_uid == os.getuid() and not _is_locked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
