"""An outage of Redis."""

from __future__ import annotations

import os
import signal

from cluster.deploy.embedded_redis import EmbeddedRedis


class Frozen:
    """The server stands still inside the block, as in an outage."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self._pid = server.pid

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGCONT)
