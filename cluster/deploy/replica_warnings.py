"""Warnings of replicas on the terminal of `tandem serve`, out of Ray's log folder of this host.

Replicas log to stderr, which Ray keeps in one file for each. A thread reads what these files gain,
and prints the lines of warnings and errors. Ray itself would forward all lines, and add
lines of its own.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.display_text import plain
from cluster.telemetry.logging_setup import PACKAGES

# Bound: lines of one module within a window, of all replicas together.
MOST_LINES = 5
WINDOW_S = 60.0
_POLL_S = 0.5
# Bound: how long a terminal that takes no lines delays the end.
_END_S = 2.0
# Bound: what one reading takes of a file; of a file that gains more, the newest part is read.
_MOST_BYTES = 256 * 1024
# Bound: what is printed of a line.
_MOST_CHARACTERS = 2000
_WARNING = re.compile(
    rf"\d{{4}}-\d\d-\d\dT[\d:.]+Z (?:warning|error|critical) ((?:{'|'.join(PACKAGES)})[.\w]*) "
)


@dataclass(slots=True)
class _ModuleLines:
    """The lines of one module since `began_s`."""

    began_s: float
    shown: int = 0
    hidden: int = 0


class WarningLimit:
    """Chooses the lines that are printed: warnings and errors, a few of each module."""

    def __init__(self) -> None:
        self._modules: dict[str, _ModuleLines] = {}

    def take(self, line: str, now_s: float) -> str | None:
        """The line, fit for a terminal; None if it is no warning, or one too many."""
        found = _WARNING.match(line)
        if found is None:
            return None
        seen = self._modules.setdefault(found[1], _ModuleLines(now_s))
        if seen.shown == MOST_LINES:
            seen.hidden += 1
            return None
        seen.shown += 1
        shown = line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."
        return plain(shown, "?")

    def ended(self, now_s: float) -> Iterator[str]:
        """What to print of the windows that have ended; they are forgotten."""
        for module, seen in list(self._modules.items()):
            if now_s - seen.began_s >= WINDOW_S:
                del self._modules[module]
                if seen.hidden:
                    yield f"{seen.hidden} more lines of {module} within {WINDOW_S:g} s"


class ReplicaWarnings:
    """Follows the files in `folder`, from their present ends. `say` prints a line."""

    def __init__(self, folder: Path, say: Callable[[str], None] | None = None) -> None:
        self._folder = folder
        self._say = say or _to_stderr
        self._limit = WarningLimit()
        self._ends = {path: path.stat().st_size for path in self._files()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replica warnings", daemon=True)

    def start(self) -> None:
        """Begin to follow, on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Print the last lines, and end the thread."""
        self._over.set()
        self._thread.join(_END_S)

    def poll(self, now_s: float) -> None:
        """Print what the files have gained; `now_s` is monotonic."""
        for note in self._limit.ended(now_s):
            self._say(f"{note}: all are in {self._folder}")
        self._ends = {path: self._follow(path, now_s) for path in self._files()}

    def _run(self) -> None:
        while not self._over.wait(_POLL_S):
            self.poll(time.monotonic())
        self.poll(time.monotonic())

    def _files(self) -> list[Path]:
        return list(self._folder.glob("worker-*.err"))

    def _follow(self, path: Path, now_s: float) -> int:
        """Print what a file has gained; returns where the next reading begins."""
        begin = self._ends.get(path, 0)
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            if size < begin:
                begin = 0  # the file began anew
            begin = max(begin, size - _MOST_BYTES)
            with path.open("rb") as file:
                file.seek(begin)
                gained = file.read(_MOST_BYTES)
            # A line without its end is read again, unless it is longer than a reading.
            whole = gained.rfind(b"\n") + 1 or len(gained) // _MOST_BYTES * _MOST_BYTES
            for line in gained[:whole].decode(errors="replace").split("\n"):
                if (shown := self._limit.take(line, now_s)) is not None:
                    self._say(shown)
            begin += whole
        return begin


def _to_stderr(line: str) -> None:
    """Print to the terminal, which may have been closed."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
