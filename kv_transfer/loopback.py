"""A lane inside one process: for a replica to itself, and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from kv_transfer.errors import LaneBroken
from kv_transfer.transport import LaneSpec

_rooms: dict[str, _Room] = {}
_rooms_lock = threading.Lock()


class _Room:
    """Where the two members meet; holds at most one message per direction."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: dict[int, torch.Tensor] = {}
        self.members: set[int] = set()
        self.broken: str | None = None

    def wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """With `changed` held: until ready, broken (LaneBroken) or out of time (LaneBroken)."""
        if not self.changed.wait_for(lambda: self.broken or ready(), timeout_s):
            self.broken = f"loopback {what} took longer than {timeout_s:g} s"
            self.changed.notify_all()
        if self.broken:
            raise LaneBroken(self.broken)


class LoopbackLane:
    """One end of a room. A send returns once the other side has taken the message."""

    staging_device = torch.device("cpu")

    def __init__(self, spec: LaneSpec) -> None:
        self._spec = spec
        with _rooms_lock:
            self._room = room = _rooms.setdefault(spec.prefix, _Room())
        with room.changed:
            room.members.add(spec.rank)
            room.changed.notify_all()
            room.wait(lambda: len(room.members) == 2, spec.timeout_s, "join")
        # Names are used once, so whoever joined second leaves nothing in the table.
        with _rooms_lock:
            _rooms.pop(spec.prefix, None)

    def send(self, buffer: torch.Tensor, timeout_s: float) -> None:
        """See `Lane.send`."""
        room, rank = self._room, self._spec.rank
        with room.changed:
            room.messages[rank] = buffer
            room.changed.notify_all()
            try:
                room.wait(lambda: rank not in room.messages, timeout_s, "send")
            finally:
                room.messages.pop(rank, None)

    def receive(self, staging: torch.Tensor, size: int, timeout_s: float) -> None:
        """See `Lane.receive`."""
        room, peer = self._room, self._spec.peer
        with room.changed:
            room.wait(lambda: peer in room.messages, timeout_s, "receive")
            message = room.messages[peer]
            if message.numel() != size:
                room.broken = f"{message.numel()} bytes sent, {size} expected"
                room.changed.notify_all()
                raise LaneBroken(room.broken)
            staging[:size].copy_(message)
            del room.messages[peer]
            room.changed.notify_all()

    def abort(self) -> None:
        """End whatever waits on either side."""
        with self._room.changed:
            self._room.broken = self._room.broken or "the loopback lane was closed"
            self._room.changed.notify_all()

    def close(self) -> None:
        """Break the lane for the other side too."""
        self.abort()
