"""Process bookkeeping on Linux: children that die with their parent, and none left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# The exit code of a tied command that cannot be run, as in a shell.
CANNOT_RUN = 126
# If the parent died before prctl took effect, the child has another parent.
_TIE = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError:
    sys.exit({CANNOT_RUN})
"""


def tied(command: Sequence[str]) -> list[str]:
    """The command, for a child that the kernel kills when the thread that starts it ends.

    A Python process ties itself and then executes the command. A `preexec_fn` would run between
    fork and exec, where locks of other threads are never released.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that they can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Give this process a name of at most 15 bytes, as `ps` shows it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def children(pid: int) -> list[int]:
    """The living processes that have `pid` as their parent."""
    return _children().get(pid, [])


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`; zombies are left out."""
    below = _children()
    found, level = list[int](), [pid]
    while level:
        level = [child for parent in level for child in below.get(parent, [])]
        found += level
    return found


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return None


def ended(pid: int) -> bool:
    """Whether a child of this process has ended. Its exit code is left to others."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # another thread has its exit code
        return True


def end_descendants(grace_s: float) -> int:
    """Wait for the descendants of this process to end; kill the rest and return its number."""
    deadline = time.monotonic() + grace_s
    while descendants(os.getpid()) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)
    killed = 0
    # A killed parent can leave children that were not seen before, so list them again.
    for _ in range(5):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        _reap()
        time.sleep(0.02)
    return killed


def _children() -> dict[int, list[int]]:
    """The living processes by parent."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = entry.read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                found.setdefault(int(parent), []).append(int(entry.parent.name))
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
