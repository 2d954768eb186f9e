"""The health of a replica as a file, for a probe that cannot call the replica.

A replica's port is a free one, so a kubelet does not know it. Where TANDEM_HEALTH_DIR names a
folder, each passed health check touches a file there. A probe counts the fresh files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_FOLDER = "TANDEM_HEALTH_DIR"


class HealthFile:
    """The file of one replica. With a `path` of None there is no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @classmethod
    def from_environment(cls, replica_id: str) -> HealthFile:
        """The file of a replica in the folder that TANDEM_HEALTH_DIR names, if it names one."""
        folder = os.environ.get(_FOLDER)
        name = re.sub(r"[^\w.-]", "_", replica_id)
        return cls(Path(folder) / name if folder else None)

    def touch(self) -> None:
        """Note that the replica is healthy. Raises OSError where the folder cannot be written."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()

    def remove(self) -> None:
        """Remove the file: the replica ends. Idempotent."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
