"""A channel inside one process: for a replica to itself, and for tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.transport import Arrived, Channel, ChannelSpec, Needs, Receipt, Wait

_meetings: dict[str, _Meeting] = {}
_meetings_lock = threading.Lock()


class _Meeting:
    """The state that both members share; `taken` counts the messages received from each of them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: tuple[deque[torch.Tensor], ...] = (deque(), deque())
        self.taken = [0, 0]
        self.members: set[int] = set()
        self.broken: str | None = None

    def wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `ready`, with `changed` locked; ChannelBroken if broken or out of time."""
        if not self.changed.wait_for(lambda: self.broken or ready(), timeout_s):
            self.broken = f"loopback {what} took longer than {timeout_s:g} s"
            self.changed.notify_all()
        self.check()

    def check(self) -> None:
        """Raise ChannelBroken once the channel is broken."""
        if self.broken:
            raise ChannelBroken(self.broken)


class LoopbackChannel(Channel):
    """One end of a meeting. A send is done once the other side has taken the message."""

    needs = Needs(one_process=True)
    staging_device = torch.device("cpu")
    ahead = 4

    def __init__(self, spec: ChannelSpec) -> None:
        self._spec = spec
        self._posted = 0
        with _meetings_lock:
            self._meeting = meeting = _meetings.setdefault(spec.name, _Meeting())
        with meeting.changed:
            meeting.members.add(spec.rank)
            meeting.changed.notify_all()
            meeting.wait(lambda: len(meeting.members) == 2, spec.timeout_s, "join")
        # A name is used once, so the entry can go when both members have joined.
        with _meetings_lock:
            _meetings.pop(spec.name, None)

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        meeting, rank = self._meeting, self._spec.rank
        with meeting.changed:
            meeting.check()
            meeting.messages[rank].append(buffer)
            meeting.changed.notify_all()
        self._posted += 1
        return partial(self._until_taken, self._posted)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        with self._meeting.changed:
            self._meeting.check()
        return partial(self._take, staging, size)

    def _until_taken(self, number: int, timeout_s: float) -> None:
        meeting, rank = self._meeting, self._spec.rank
        with meeting.changed:
            meeting.wait(lambda: meeting.taken[rank] >= number, timeout_s, "send")

    def _take(self, staging: torch.Tensor, size: int, timeout_s: float) -> Arrived:
        meeting, peer = self._meeting, self._spec.peer
        with meeting.changed:
            meeting.wait(lambda: bool(meeting.messages[peer]), timeout_s, "receive")
            message = meeting.messages[peer].popleft()
            if message.numel() != size:
                meeting.broken = f"{message.numel()} bytes sent, {size} expected"
                meeting.changed.notify_all()
                raise ChannelBroken(meeting.broken)
            staging[:size].copy_(message)
            meeting.taken[peer] += 1
            meeting.changed.notify_all()
        return Arrived(staging[:size])

    def abort(self) -> None:
        """End all waits on both sides."""
        with self._meeting.changed:
            self._meeting.broken = self._meeting.broken or "the loopback channel was closed"
            self._meeting.changed.notify_all()

    def close(self) -> None:
        """Break the channel, for the other side too."""
        self.abort()
