"""The end of a process of Ray Serve, by SIGTERM or by a request.

After SIGTERM the process goes on, until Serve has it replaced and drained.

Serve replaces a replica that is unwell: it starts another one, and lets this one drain. So after
SIGTERM the health check fails.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
from contextlib import suppress

from engine.errors import Unavailable

# The time in which the answer to a request to end leaves the process.
_ANSWER_S = 0.2


def end_this_process(at_once: bool) -> None:
    """End this process soon: at once as by kill -9, or after its work as by SIGTERM."""
    number = signal.SIGKILL if at_once else signal.SIGTERM
    asyncio.get_running_loop().call_later(_ANSWER_S, os.kill, os.getpid(), number)


class EndSignal:
    """Takes SIGTERM from now on.

    Ray ends a process at once that gets SIGTERM. Python lets only the main thread replace the
    handler, and Ray's main thread runs no code of ours. `faulthandler` does it from any thread:
    it writes where the process stands, here to a pipe.
    """

    def __init__(self) -> None:
        self._noted, self._note = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._received = False
        faulthandler.register(signal.SIGTERM, file=self._note, all_threads=False)

    @property
    def received(self) -> bool:
        """Whether a SIGTERM came."""
        with suppress(BlockingIOError):
            self._received = self._received or bool(os.read(self._noted, 1))
        return self._received

    def check(self) -> None:
        """Raise Unavailable once a SIGTERM came."""
        if self.received:
            raise Unavailable("SIGTERM: this process is to be replaced")
