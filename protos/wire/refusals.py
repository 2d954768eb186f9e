"""Refused connections: each is counted, and at most one line a second is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from engine.rare_log import RareLog

log = logging.getLogger(__name__)

# `closed`: the other side hung up before its proof, as a port scan does.
Reason = Literal["preface", "secret", "timeout", "too_many", "tls", "closed"]

# Bound: refusals are logged so often at most.
_LOG_EVERY_S = 1.0


class RefusedConnections:
    """Gets each refusal of one listener. `count` is called with every reason."""

    def __init__(self, listener: str, count: Callable[[str], None]) -> None:
        self._listener = listener
        self._count = count
        self._unlogged = RareLog(log, "connections were refused", _LOG_EVERY_S)

    def add(self, reason: str, peer: str = "") -> None:
        """Count a refusal, and log it now or together with the next ones. `closed` is not logged.

        `peer` is the address of the other side, where it is known.
        """
        self._count(reason)
        if reason != "closed":
            self._unlogged.note({"listener": self._listener, "last_peer": peer}, kind=reason)

    def close(self) -> None:
        """Log what is left."""
        self._unlogged.close()
