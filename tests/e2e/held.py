"""Decode replicas that are held up, so that their streams still run however fast the machine is."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.e2e.serving import Serving

# Shorter than the silence for which routers and links take a replica as dead.
_RUNS_S, _STANDS_S = 0.01, 0.2


@contextmanager
def held(serving: Serving) -> Iterator[None]:
    """Let each decode replica compute for a twentieth of the time. A replica may end meanwhile."""
    decode = [one for one in serving.replicas() if one["role"] == "decode"]
    pids = [serving.pid_of(str(one["address"])) for one in decode]
    free = threading.Event()

    def hold() -> None:
        while not free.wait(_RUNS_S):
            _send(pids, signal.SIGSTOP)
            free.wait(_STANDS_S)
            _send(pids, signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        free.set()
        thread.join()


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
