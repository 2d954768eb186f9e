"""A check whether two processes can read each other's memory segments.

Each process has a witness: a memfd with random bytes. The Hello message carries the path and the
content of the receiver's witness. A sender that opens that path under /proc and finds these bytes
is on the same kernel and in the same process namespace, and may open the receiver's files.
Segments are opened in the same way.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NONCE_BYTES = 32


@dataclass(frozen=True, slots=True)
class Witness:
    """A process's witness file and its content; empty if the system has no memfd."""

    boot: str
    pid: int
    descriptor: int
    nonce: bytes


@cache
def own_witness() -> Witness:
    """This process's own witness; its file stays open as long as the process lives."""
    try:
        boot = _BOOT_ID.read_text().strip()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        descriptor = os.memfd_create("tandem-witness", os.MFD_CLOEXEC)
        os.write(descriptor, nonce)
    except (OSError, AttributeError):
        return Witness("", 0, 0, b"")
    return Witness(boot, os.getpid(), descriptor, nonce)


def separation_from(peer: Witness) -> str | None:
    """Why this process cannot share memory with the peer; None if it can."""
    here = own_witness()
    if not here.boot or not peer.boot:
        return "one side has no shared memory"
    if here.boot != peer.boot:
        return "they are on different hosts"
    try:
        found = _read(peer)
    except OSError as error:
        return f"the peer's witness file cannot be opened ({error.strerror})"
    if found != peer.nonce or len(found) != _NONCE_BYTES:
        return "the peer's witness file is another one: not the same process namespace"
    return None


def _read(peer: Witness) -> bytes:
    path = f"/proc/{int(peer.pid)}/fd/{int(peer.descriptor)}"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return b""
        return os.pread(descriptor, _NONCE_BYTES, 0)
    finally:
        os.close(descriptor)
