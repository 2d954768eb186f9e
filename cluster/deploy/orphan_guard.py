"""The guard: a small process that ends what a launcher leaves behind when it is killed.

The kernel ends the processes that the launcher started itself. Their own children find out by
themselves, which takes Ray's agents a minute, and are nobody's by then. So the guard notes them
while the launcher lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from cluster.deploy.child_processes import descendants, name_process, started

# The name of the process once it has noted what there is.
NAME = "tandem-guard"
_ROOT = Path(__file__).parents[2]
_MAIN = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); " + (
    "from cluster.deploy.orphan_guard import watch; watch(int(sys.argv[1]))"
)
# Bound: a process that began later than this before the launcher's death is not known.
_NOTE_EVERY_S = 2.0


class OrphanGuard:
    """The guard of this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _MAIN, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in the terminal must not end it
        )

    def stop(self) -> None:
        """End the guard, which then ends nothing. Idempotent."""
        self._process.kill()
        self._process.wait()


def watch(launcher: int) -> None:
    """Wait until the launcher has died, then kill its descendants."""
    ended = select.poll()
    try:
        ended.register(os.pidfd_open(launcher), select.POLLIN)
    except ProcessLookupError:
        return
    known = _noted(launcher)
    name_process(NAME)
    while not ended.poll(_NOTE_EVERY_S * 1000):
        known = _noted(launcher)
    for pid, at in known.items():
        _kill(pid, at)


def _noted(launcher: int) -> dict[int, int]:
    """When each descendant was started, by process id."""
    found = [pid for pid in descendants(launcher) if pid != os.getpid()]
    return {pid: at for pid in found if (at := started(pid)) is not None}


def _kill(pid: int, at: int) -> None:
    """Kill a process, if it is still the one that was started then."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if started(pid) == at:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
