"""The processors, the memory and the limits of this machine."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.doctor.findings import Finding, Severity

_GIB = 1 << 30
# What the compute kernels ask for, best first (engine/kernels/cpu).
_VECTORS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
# What the kernel answers where nothing keeps the clock, from <sys/timex.h>, and more bytes than its
# `struct timex` has.
_TIME_ERROR, _TIMEX_BYTES = 5, 512
# Bound: files of a router with its default number of requests (`cluster/gateway/connections`).
_LEAST_FILES = 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the kernel says what this machine has."""

    proc: Path = Path("/proc")
    control_group: Path = Path("/sys/fs/cgroup")

    def text(self, name: str) -> str:
        """A file of /proc; empty where it is not there."""
        file = self.proc / name
        return file.read_text(errors="replace") if file.is_file() else ""


def look_at_processors(machine: Machine, cores: int) -> Iterator[Finding]:
    """The processor's name, the cores for this process, and its vector instructions."""
    lines = machine.text("cpuinfo").splitlines()
    known = dict[str, str]()
    for line in lines:
        name, _, value = line.partition(":")
        known.setdefault(name.strip(), value.strip())
    flags = set(known.get("flags", "").split())
    best = next((one for one in _VECTORS if one in flags), None)
    what = f"{known.get('model name', 'unknown processor')}, {cores} cores for this process"
    if best is None:
        change = "take a processor with AVX2; here each operation goes through torch alone"
        yield Finding("processor", Severity.WARNING, f"{what}, without AVX2", change)
    else:
        yield Finding("processor", Severity.OK, f"{what}, {best}")
    if cores < 2:
        change = "two cores at least: router and replicas take turns on one"
        yield Finding("processor", Severity.WARNING, f"{cores} core", change)


def look_at_scheduling(machine: Machine) -> Iterator[Finding]:
    """Whether the kernel shares cores between sessions before it shares them between processes."""
    if machine.text("sys/kernel/sched_autogroup_enabled").strip() == "1":
        found = "sched_autogroup is on: sessions share the cores first, then their processes"
        change = "for a load test, run client and server in one session, or set it to 0"
        yield Finding("scheduling", Severity.NOTE, found, change)


def look_at_files(limits: tuple[int, int] | None = None) -> Iterator[Finding]:
    """The files that a process may open: each connection is one."""
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _LEAST_FILES:
        change = f"raise the hard limit to {_LEAST_FILES} or more (ulimit -Hn, LimitNOFILE)"
        yield Finding("open files", Severity.WARNING, f"at most {hard}", change)
    else:
        most = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
        yield Finding("open files", Severity.OK, f"{soft}, which a router raises to {most}")


def look_at_locked_memory(gpus: int, limits: tuple[int, int] | None = None) -> Iterator[Finding]:
    """Memory that may be locked: RDMA registers its buffers with it."""
    if not gpus:
        return
    _, hard = limits or resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY:
        yield Finding("locked memory", Severity.OK, "no limit")
    else:
        change = "memlock=infinity on the node (containerd's LimitMEMLOCK), for RDMA between hosts"
        yield Finding("locked memory", Severity.WARNING, f"at most {hard >> 10} KiB", change)


def look_at_shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """The room for KV that replicas of one host lend each other."""
    if not folder.is_dir():
        change = "mount a tmpfs there; KV then stays in memory that processes share"
        yield Finding("shared memory", Severity.WARNING, f"{folder} is not there", change)
        return
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if free < _GIB:
        change = "give it 1 GiB or more (a container's shm size)"
        yield Finding("shared memory", Severity.WARNING, f"{free >> 20} MiB free", change)
    else:
        yield Finding("shared memory", Severity.OK, f"{free / _GIB:.1f} GiB free in {folder}")


def clock_state() -> int:
    """What the kernel says of this machine's clock (adjtimex(2)); negative where it says nothing.

    Raises AttributeError where the C library has no such call.
    """
    # No mode is set in the zeroed struct, so the call only asks.
    return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))


def look_at_clock(state: Callable[[], int] = clock_state) -> Iterator[Finding]:
    """Whether something keeps the clock: rows and traces of several hosts are compared by it."""
    found = state()
    if found in (_TIME_ERROR, -1):
        what = "nothing is known to keep it" if found == _TIME_ERROR else "the kernel says nothing"
        change = "with several hosts, run chrony or ntpd on each, outside the container"
        yield Finding("clock", Severity.NOTE, what, change)
    else:
        yield Finding("clock", Severity.OK, "kept by NTP or PTP")
