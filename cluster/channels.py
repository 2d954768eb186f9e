"""gRPC channels to replicas, one per address, kept while the replica lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc.aio

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Channels:
    """Opens a channel when an address is first asked for."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to that address."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return self._channels[address]

    async def keep(self, addresses: Iterable[str], grace_s: float) -> None:
        """Close the channels to all other addresses once their calls end, at most after `grace_s`.

        A replica can be missing from the directory and still be streaming.
        """
        gone = [self._channels.pop(a) for a in set(self._channels) - set(addresses)]
        await asyncio.gather(*(channel.close(grace_s) for channel in gone))

    async def close(self) -> None:
        """Close all, and end their calls."""
        await self.keep((), 0)
