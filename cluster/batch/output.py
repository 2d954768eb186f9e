"""The output file of a batch. Successful results stay; other lines are removed and tried again."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from cluster.batch.lines import successful_results
from engine.errors import ConfigError


class BatchOutput:
    """A file to which result lines are appended; `done` has the custom_ids of successful ones.

    Opening it drops all lines without a successful result. The old file stays until the new one is
    complete. The file is locked while it is open; ConfigError where another process writes to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _locked(path)
        if os.fstat(self._file.fileno()).st_ino != path.stat().st_ino:
            raise ConfigError(f"{path}: another batch has just written it")
        self.done: set[str] = set()
        self._keep_successful()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, line: bytes) -> None:
        """Append a line; when this returns, it survives the end of this process."""
        self._file.write(line)
        self._file.flush()

    def _keep_successful(self) -> None:
        self._file.seek(0)
        kept_bytes = 0
        for custom_id, line in successful_results(self._file):
            self.done.add(custom_id)
            kept_bytes += len(line)
        if kept_bytes == self._file.seek(0, os.SEEK_END):
            return
        part = self._path.with_name(f"{self._path.name}.part")
        part.unlink(missing_ok=True)
        fresh = _locked(part)
        self._file.seek(0)
        for _, line in successful_results(self._file):
            fresh.write(line)
        fresh.flush()
        os.fsync(fresh.fileno())
        part.replace(self._path)
        # Locked before it had this name, so that no other process can lock it first.
        self._file.close()
        self._file = fresh


def _locked(path: Path) -> BinaryIO:
    try:
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"{path}: another batch writes to it") from None
    return file
