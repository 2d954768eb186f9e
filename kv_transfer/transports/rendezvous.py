"""The values that the two ends of a channel exchange while both join it, as their addresses.

Gloo and NCCL read them from a store of torch.distributed. Here the link's control stream carries
them, which only members of the cluster can open. So no store listens on a port.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed

# Bound: the values of one channel, of which Gloo has one for each connection, and their bytes.
_MOST_VALUES = 64
_MOST_BYTES = 64 * 1024


class Rendezvous(torch.distributed.Store):  # type: ignore[name-defined,misc]
    """One end's view of the values of both ends.

    `send(key, value)` brings a value of this end to the other; any thread calls it. A value that is
    missing is waited for; RuntimeError after `timeout_s`, as torch's own stores raise.
    """

    def __init__(self, send: Callable[[str, bytes], None], timeout_s: float) -> None:
        super().__init__()
        self._send = send
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._closed = False

    def take(self, key: str, value: bytes) -> bool:
        """Take a value of the other end; False if it is beyond the bounds."""
        with self._changed:
            size = sum(map(len, self._values.values())) + len(value)
            if len(self._values) >= _MOST_VALUES or size > _MOST_BYTES:
                return False
            self._values[key] = value
            self._changed.notify_all()
        return True

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value and send it to the other end."""
        found = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            self._values[key] = found
            self._changed.notify_all()
        self._send(key, found)

    def get(self, key: str) -> bytes:
        """The value, once either end has set it."""
        self.wait([key])
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until either end has set all of these."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.check(keys), limit_s)
            if not self.check(keys):
                reason = "the link ended" if self._closed else f"not set within {limit_s:g} s"
                raise RuntimeError(f"{', '.join(keys)}: {reason}")

    def check(self, keys: list[str]) -> bool:
        """Whether either end has set all of these."""
        return all(key in self._values for key in keys)
