"""Ray's GCS on one machine: the process that knows the cluster, started anew after it died.

Its state is on disk, and the new process listens on the old port. So Ray's other processes go on
with it, and requests notice nothing, because none passes through it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.deploy.child_processes import children, ended, tied
from engine.errors import Unavailable

log = logging.getLogger(__name__)

_NAME = "gcs_server"
_PORT_FLAG = "--gcs_server_port="
# Bound: a GCS that dies more often than so is not started anew.
MOST_DEATHS = 5
WITHIN_S = 120.0


class GcsServer:
    """The GCS that `ray.init` started. Only the process that called `ray.init` may have it."""

    def __init__(
        self, pid: int, command: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pid = pid
        self._command = tuple(command)
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls, address: str) -> GcsServer:
        """The GCS at `address`, a child of this process; raises Unavailable if there is none."""
        pid, arguments = child_named(_NAME)
        return cls(pid, with_port(arguments, address.rpartition(":")[2]))

    @property
    def pid(self) -> int:
        """The process id of the present GCS."""
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not ended(self._pid)

    def keep(self) -> None:
        """Start the GCS anew if it died. Call it from the main thread, which it is tied to.

        Raises Unavailable if it died too often, or cannot be started.
        """
        if self.alive:
            return
        now = self._clock()
        if len(self._deaths) == MOST_DEATHS and now - self._deaths[0] < WITHIN_S:
            raise Unavailable(f"Ray's GCS died {MOST_DEATHS + 1} times within {WITHIN_S:g} s")
        self._deaths.append(now)
        self.stop()  # takes the exit code of one that was started here
        log.warning("Ray's GCS died and is started anew", extra={"pid": self._pid})
        try:
            self._process = subprocess.Popen(
                tied(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in the terminal must not end it before the replicas
            )
        except OSError as error:
            raise Unavailable(f"Ray's GCS cannot be started: {error}") from None
        self._pid = self._process.pid

    def stop(self) -> None:
        """End a GCS that was started here. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def child_named(name: str) -> tuple[int, list[str]]:
    """The child of this process with that program, and its command; raises Unavailable."""
    for pid in children(os.getpid()):
        arguments = _arguments(pid)
        if arguments and Path(arguments[0]).name == name:
            return pid, arguments
    raise Unavailable(f"Ray did not start: there is no {name}")


def with_port(arguments: Sequence[str], port: str) -> list[str]:
    """The command of a GCS that takes this port in place of a free one."""
    return [_PORT_FLAG + port if one.startswith(_PORT_FLAG) else one for one in arguments]


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
