"""Refused connections: each is counted, and at most one line a second is logged."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

# `closed`: the other side hung up before its proof, as a port scan does.
Reason = Literal["preface", "secret", "timeout", "too_many", "tls", "closed"]

_INTERVAL_S = 1.0


class RefusedConnections:
    """Gets each refusal of one listener. `count` is called with every reason."""

    def __init__(self, listener: str, count: Callable[[str], None]) -> None:
        self._listener = listener
        self._count = count
        self._unlogged: Counter[str] = Counter()
        self._last_peer = ""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reason: str, peer: str = "") -> None:
        """Count a refusal, and log it now or together with the next ones. `closed` is not logged.

        `peer` is the address of the other side, where it is known.
        """
        self._count(reason)
        if reason == "closed":
            return
        self._unlogged[reason] += 1
        self._last_peer = peer
        if self._timer is None:
            self._write()

    def close(self) -> None:
        """Log what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unlogged:
            self._line()

    def _write(self) -> None:
        self._timer = None
        if self._unlogged:
            self._line()
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._write)

    def _line(self) -> None:
        fields = {"listener": self._listener, "last_peer": self._last_peer, **self._unlogged}
        self._unlogged.clear()
        log.warning("connections were refused", extra=fields)
