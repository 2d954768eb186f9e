"""A channel over Gloo, through host memory, for any two replicas that reach each other by TCP.

The channel is a pairwise process group without a global world (torch.distributed, 2.11 to 2.13).
A wait inside Gloo ends by its timeout only, and not by the peer's death or by `abort`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from engine.errors import first_line
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.transport import Channel, ChannelSpec, Receipt, Wait, after

# Tuned: the connections of a channel, which carry its messages in rotation. Gloo locks a connection
# while it writes or reads a message, so there is at most one message on each.
_CONNECTIONS = 3
# Bound: the time of each wait that is left after a failure.
_FAILED_WAIT_S = 0.001
# Most of the names used here are missing from torch's type stubs.
_dist: Any = torch.distributed


class GlooChannel(Channel):
    """One end of a Gloo group of two."""

    staging_device = torch.device("cpu")
    # One message on each connection.
    ahead = _CONNECTIONS

    def __init__(self, spec: ChannelSpec) -> None:
        self._peer = spec.peer
        self._posted = {"send": 0, "recv": 0}
        self._failed = False
        options = _dist.ProcessGroupGloo._Options()
        # By default Gloo resolves the host name, which may be another address than the replica's.
        # A tag chooses the device, and each device has a connection of its own.
        options._devices = [
            _dist.ProcessGroupGloo.create_device(hostname=spec.host) for _ in range(_CONNECTIONS)
        ]
        options._timeout = timedelta(seconds=spec.timeout_s)
        # Frames leave one after the other.
        options._threads = 1
        try:
            self._group: Any = _dist.ProcessGroupGloo(spec.store, spec.rank, 2, options)
        except RuntimeError as error:
            raise ChannelBroken(f"gloo join: {first_line(error)[:300]}") from error

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        return self._post("send", buffer)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        # The whole buffer: Gloo accepts a smaller message, but aborts the process on a larger one.
        # The checksum finds a frame that arrives in the place of another.
        return after(self._post("recv", staging), staging[:size])

    def abort(self) -> None:
        """Do nothing: only its timeout ends a wait inside Gloo, and the thread waits for that."""

    def close(self) -> None:
        """Drop the group: its destructor closes the pair."""
        self._group = None

    def _post(self, call: str, buffer: torch.Tensor) -> Wait:
        if self._group is None:
            raise ChannelBroken("the gloo channel is closed")
        tag = self._posted[call] % _CONNECTIONS
        self._posted[call] += 1
        try:
            work = getattr(self._group, call)([buffer], self._peer, tag)
        except RuntimeError as error:
            raise ChannelBroken(f"gloo {call}: {first_line(error)[:300]}") from error

        def wait(timeout_s: float) -> None:
            # After a failure the waits on the other connections get no time of their own.
            limit_s = _FAILED_WAIT_S if self._failed else timeout_s
            try:
                work.wait(timedelta(seconds=limit_s))
            except RuntimeError as error:
                self._failed = True
                raise ChannelBroken(f"gloo {call}: {first_line(error)[:300]}") from error

        return wait
