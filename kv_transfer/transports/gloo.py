"""A channel over Gloo, for KV in host memory: any two replicas that reach each other by TCP.

A pairwise process group without a global world (torch.distributed, 2.11 to 2.13). A wait inside
Gloo ends by its timeout only: not by the peer's death, nor by `abort`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.store import open_store_client
from kv_transfer.transports.transport import Channel, ChannelSpec, Receipt, Wait, after

# A channel's connections take messages by turns. While Gloo writes or reads a message it holds that
# connection's lock: whoever posts the next one there waits, or tries again and again. With one
# message at a time on each of them that does not happen.
_CONNECTIONS = 3
_AFTER_FAILURE_S = 0.001
# Most of what is used here is missing from torch's type stubs.
_dist: Any = torch.distributed


class GlooChannel(Channel):
    """One end of a Gloo group of two; blocks until the other end has joined, or ChannelBroken."""

    staging_device = torch.device("cpu")
    # One on each connection.
    ahead = _CONNECTIONS

    def __init__(self, spec: ChannelSpec) -> None:
        self._peer = spec.peer
        self._turns = {"send": 0, "recv": 0}
        self._failed = False
        options = _dist.ProcessGroupGloo._Options()
        # Bound to the replica's own address: by default Gloo asks the host name's resolver. A tag
        # chooses the device, and each device has a connection of its own.
        options._devices = [
            _dist.ProcessGroupGloo.create_device(hostname=spec.host) for _ in range(_CONNECTIONS)
        ]
        options._timeout = timedelta(seconds=spec.timeout_s)
        # Frames leave one after the other.
        options._threads = 1
        try:
            self._group: Any = _dist.ProcessGroupGloo(
                open_store_client(spec), spec.rank, 2, options
            )
        except RuntimeError as error:
            raise ChannelBroken(f"gloo join: {_first_line(error)}") from error

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        return self._post("send", buffer)

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        # All of the buffer: Gloo takes a smaller message, but one that is larger than what was
        # posted ends the process. So a frame out of turn is left to its checksum.
        return after(self._post("recv", staging), staging[:size])

    def abort(self) -> None:
        """Nothing ends a wait inside Gloo but its timeout; the thread is left to it."""

    def close(self) -> None:
        """Drop the group: its destructor closes the pair."""
        self._group = None

    def _post(self, call: str, buffer: torch.Tensor) -> Wait:
        if self._group is None:
            raise ChannelBroken("the gloo channel is closed")
        tag = self._turns[call] % _CONNECTIONS
        self._turns[call] += 1
        try:
            work = getattr(self._group, call)([buffer], self._peer, tag)
        except RuntimeError as error:
            raise ChannelBroken(f"gloo {call}: {_first_line(error)}") from error

        def wait(timeout_s: float) -> None:
            # What a failure leaves behind on the other connections gets no time of its own.
            limit_s = _AFTER_FAILURE_S if self._failed else timeout_s
            try:
                work.wait(timedelta(seconds=limit_s))
            except RuntimeError as error:
                self._failed = True
                raise ChannelBroken(f"gloo {call}: {_first_line(error)}") from error

        return wait


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
