"""Why a channel over NIXL has ended."""

from __future__ import annotations

import threading

from kv_transfer.errors import ChannelBroken


class ChannelEnd:
    """The first reason for which a channel ended. Any thread may set `aborted`."""

    def __init__(self) -> None:
        self.aborted = threading.Event()
        self._reason: str | None = None

    def set(self, reason: str) -> None:
        """End the channel, unless it has ended."""
        self._reason = self._reason or reason

    def check(self) -> None:
        """Raise ChannelBroken with the reason if the channel has ended."""
        if self.aborted.is_set():
            self.set("the nixl channel was aborted")
        if self._reason is not None:
            raise ChannelBroken(self._reason)
