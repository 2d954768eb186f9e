"""A channel inside one process: for a replica to itself, and for tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.transport import Arrived, Channel, ChannelSpec, Needs, Receipt, Wait

_rooms: dict[str, _Room] = {}
_rooms_lock = threading.Lock()


class _Room:
    """Where the two members meet; `taken` counts what was received from each of them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: tuple[deque[torch.Tensor], ...] = (deque(), deque())
        self.taken = [0, 0]
        self.members: set[int] = set()
        self.broken: str | None = None

    def wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """With `changed` held: until ready; ChannelBroken where it is broken or out of time."""
        if not self.changed.wait_for(lambda: self.broken or ready(), timeout_s):
            self.broken = f"loopback {what} took longer than {timeout_s:g} s"
            self.changed.notify_all()
        self.check()

    def check(self) -> None:
        """ChannelBroken once it is."""
        if self.broken:
            raise ChannelBroken(self.broken)


class LoopbackChannel(Channel):
    """One end of a room. A send is done once the other side has taken the message."""

    needs = Needs(one_process=True)
    staging_device = torch.device("cpu")
    ahead = 4

    def __init__(self, spec: ChannelSpec) -> None:
        self._spec = spec
        self._posted = 0
        with _rooms_lock:
            self._room = room = _rooms.setdefault(spec.prefix, _Room())
        with room.changed:
            room.members.add(spec.rank)
            room.changed.notify_all()
            room.wait(lambda: len(room.members) == 2, spec.timeout_s, "join")
        # Names are used once, so whoever joined second leaves nothing in the table.
        with _rooms_lock:
            _rooms.pop(spec.prefix, None)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        room, rank = self._room, self._spec.rank
        with room.changed:
            room.check()
            room.messages[rank].append(buffer)
            room.changed.notify_all()
        self._posted += 1
        return partial(self._until_taken, self._posted)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        with self._room.changed:
            self._room.check()
        return partial(self._take, staging, size)

    def _until_taken(self, number: int, timeout_s: float) -> None:
        room, rank = self._room, self._spec.rank
        with room.changed:
            room.wait(lambda: room.taken[rank] >= number, timeout_s, "send")

    def _take(self, staging: torch.Tensor, size: int, timeout_s: float) -> Arrived:
        room, peer = self._room, self._spec.peer
        with room.changed:
            room.wait(lambda: bool(room.messages[peer]), timeout_s, "receive")
            message = room.messages[peer].popleft()
            if message.numel() != size:
                room.broken = f"{message.numel()} bytes sent, {size} expected"
                room.changed.notify_all()
                raise ChannelBroken(room.broken)
            staging[:size].copy_(message)
            room.taken[peer] += 1
            room.changed.notify_all()
        return Arrived(staging[:size])

    def abort(self) -> None:
        """End whatever waits on either side."""
        with self._room.changed:
            self._room.broken = self._room.broken or "the loopback channel was closed"
            self._room.changed.notify_all()

    def close(self) -> None:
        """Break the channel for the other side too."""
        self.abort()
