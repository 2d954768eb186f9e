"""Refused connections: each is counted, and at most one line a second is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

# `closed`: the other side hung up before its proof, as a port scan does.
Reason = Literal["preface", "secret", "timeout", "too_many", "tls", "closed"]

_INTERVAL_S = 1.0


class RefusedConnections:
    """Gets each refusal. `count` is called with every reason."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._held = 0
        self._last: tuple[str, Reason] = ("", "preface")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, peer: str, reason: Reason) -> None:
        """Count a refusal, and log it now or together with the next ones."""
        self._count(reason)
        if reason == "closed":
            return
        self._held += 1
        self._last = (peer, reason)
        if self._timer is None:
            self._write()

    def close(self) -> None:
        """Log what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._line()

    def _write(self) -> None:
        self._timer = None
        if self._held:
            self._line()
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._write)

    def _line(self) -> None:
        (peer, reason), count, self._held = self._last, self._held, 0
        log.warning(
            "connections refused", extra={"count": count, "last_peer": peer, "reason": reason}
        )
