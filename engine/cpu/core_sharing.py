"""Sets the threads of a step: all cores, or a fair share among the busy engines of a host.

Engines of one user on one host find each other through small files in shared memory. Each engine
keeps one file open and locked while it lives, and writes to it when it computes. So two replicas on
two cores take one thread each while both are busy, and two threads while the other is idle. More
threads than cores would spin against each other, which costs far more than they bring. An engine
that computes prompts also writes their urgency, so that others leave an interval between their
steps. A layer of many tokens may take longer than another engine's step, so its threads read these
files themselves.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import tempfile
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from engine import kernels
from engine.types.urgency import Urgency

# Tuned: the steps of a smaller model are so short that threads cost more than they bring.
_LEAST_WEIGHT_BYTES = 32 << 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATE = struct.Struct("ddB")  # seconds since boot of the last step's begin and end, its urgency


@dataclass(frozen=True, slots=True)
class BusyTimes:
    """How long other engines count as busy, and the interval of scans for them (seconds).

    `recent_s`, tuned: so long after its last step an engine still counts as busy.
    `longest_step_s`, a bound: an engine in a longer step is stuck, and counts no more.
    `scan_s`, a bound: between two scans for engines that have come or gone.
    """

    recent_s: float = 0.01
    longest_step_s: float = 5.0
    scan_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Beside:
    """The data that an operation reads while it runs, to take its share of the `cores`.

    `steps` has for each other engine a tensor [2] float64: when its last step began and ended. That
    engine goes on writing it. A step that ended by `since_s` is over.
    """

    steps: list[torch.Tensor] = field(default_factory=list)
    since_s: float = 0.0
    cores: int = 1


class NeighbourEngine:
    """Another engine of this host, known by its file."""

    def __init__(self, file: mmap.mmap, times: BusyTimes) -> None:
        self.step = _step_in(file)
        self._file = file
        self._times = times

    def busy(self, now: float) -> bool:
        """Whether the engine computes, or did a moment ago."""
        began, ended, _ = _STATE.unpack_from(self._file)
        if began > ended:
            return bool(now - began < self._times.longest_step_s)
        return bool(now - ended < self._times.recent_s)

    def stuck(self, now: float) -> bool:
        """Whether the engine began a step so long ago that it no longer counts as busy."""
        began, ended, _ = _STATE.unpack_from(self._file)
        return bool(began > ended and now - began >= self._times.longest_step_s)

    def urgency(self, now: float) -> Urgency:
        """The urgency of the prompts that the engine computes now."""
        if not self.busy(now):
            return Urgency.NONE
        # A newer version on this host may have more values.
        return Urgency(min(_STATE.unpack_from(self._file)[2], Urgency.URGENT))


class CoreSharing:
    """One engine's share of the host's cores. One thread computes; any may read `urgency`."""

    def __init__(
        self, weight_bytes: int, folder: Path | None = None, times: BusyTimes | None = None
    ) -> None:
        self._cores = usable_cores()
        self._single = self._cores == 1 or weight_bytes < _LEAST_WEIGHT_BYTES
        self._folder = folder or _shared_folder()
        self._times = times or BusyTimes()
        self._neighbours: dict[str, NeighbourEngine] = {}
        self._scanned_s = 0.0
        self._threads: int | None = None
        self._began_s = 0.0
        self._urgency = Urgency.NONE
        self._own: mmap.mmap | None = None
        self._step: torch.Tensor | None = None
        self._name = ""
        if self._folder is not None:
            # Without a file this engine takes all cores.
            with suppress(OSError):
                self._join(self._folder)

    def enter(self, urgency: Urgency = Urgency.NONE) -> None:
        """Begin a step: tell the other engines, and set torch's threads to this engine's share."""
        self._began_s, self._urgency = time.monotonic(), urgency
        self._tell(0.0)
        self.adapt()

    def adapt(self) -> None:
        """Set torch's threads to the present share; called between two operations."""
        threads = 1 if self._single else self._share(time.monotonic())
        if threads != self._threads:
            torch.set_num_threads(threads)
            self._threads = threads

    def beside(self) -> Beside:
        """The data of the other engines for an operation that begins now."""
        now = time.monotonic()
        others = [] if self._single else self._neighbours.values()
        steps = [neighbour.step for neighbour in others if not neighbour.stuck(now)]
        return Beside(steps, now - self._times.recent_s, self._cores)

    def leave(self) -> None:
        """End a step."""
        self._tell(time.monotonic())

    def yield_cores(self) -> None:
        """Give this engine's share to the other engines until its next step."""
        self._began_s = 0.0
        self._tell(0.0)
        if self._step is not None:
            kernels.wake(self._step)

    @property
    def shared_name(self) -> str:
        """The common name of all engines on these cores; "" if this engine shares no cores.

        A small model's step takes one core, so it shares none where there are several.
        """
        if self._folder is None or (self._single and self._cores > 1):
            return ""
        try:
            found = self._folder.stat()
            return f"cores-{_boot_id()}-{found.st_dev}-{found.st_ino}"
        except OSError:
            return ""

    @property
    def urgency(self) -> Urgency:
        """The greatest urgency of the other engines that compute now."""
        now = time.monotonic()
        every = (neighbour.urgency(now) for neighbour in self._neighbours.values())
        return max(every, default=Urgency.NONE)

    def _tell(self, ended_s: float) -> None:
        if self._own is not None:
            _STATE.pack_into(self._own, 0, self._began_s, ended_s, self._urgency)

    def _share(self, now: float) -> int:
        if now - self._scanned_s > self._times.scan_s:
            # Without the folder this engine takes all cores; the step goes on.
            with suppress(OSError):
                self._scan()
            self._scanned_s = now
        busy = sum(neighbour.busy(now) for neighbour in self._neighbours.values())
        return max(1, self._cores // (1 + busy))

    def _join(self, folder: Path) -> None:
        """Make this engine's file; other engines see it once it is complete and locked."""
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        hidden, shown = folder / f".{self._name}", folder / self._name
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        weakref.finalize(self, _withdraw, descriptor, shown)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, _STATE.size)
        self._own = mmap.mmap(descriptor, _STATE.size)
        self._step = _step_in(self._own)
        hidden.rename(shown)

    def _scan(self) -> None:
        """Find new neighbours; remove the files of dead ones."""
        if self._folder is None:
            return
        found = {path.name for path in self._folder.iterdir()} - {self._name}
        neighbours = {}
        for name in found:
            if not name.startswith("."):
                with suppress(OSError, ValueError):
                    if (neighbour := self._read_neighbour(self._folder / name)) is not None:
                        neighbours[name] = neighbour
        # In one assignment, because another thread may read the urgency meanwhile.
        self._neighbours = neighbours

    def _read_neighbour(self, path: Path) -> NeighbourEngine | None:
        """The engine with this file; None if that engine is dead."""
        with path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                known = self._neighbours.get(path.name)
                return known or NeighbourEngine(mmap.mmap(file.fileno(), _STATE.size), self._times)
            path.unlink()
            return None


def _step_in(file: mmap.mmap) -> torch.Tensor:
    return torch.frombuffer(file, dtype=torch.float64, count=2)


def _withdraw(descriptor: int, path: Path) -> None:
    """Remove an engine's file, at the end of the engine or of its process."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


@cache
def _boot_id() -> str:
    return _BOOT.read_text().strip()


def usable_cores() -> int:
    """Cores that this process may run on, by its affinity and its control group's quota."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _shared_folder() -> Path | None:
    """A folder that belongs to this user alone, or None where there cannot be one."""
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    folder = root / f"tandem-cores-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        owned = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
    except OSError:
        return None
    return folder if owned else None
