"""The streams to replicas, one per address, kept while the replica lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc.aio

from cluster.call_stream import CallStream
from protos.channel import DIRECT

_OPTIONS = (
    DIRECT,
    ("grpc.keepalive_time_ms", 10_000),
    # A machine whose cores are all busy answers late, and is not dead.
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class CallStreams:
    """Makes the stream to an address when it is first asked for."""

    def __init__(self) -> None:
        self._streams: dict[str, CallStream] = {}

    def to(self, address: str) -> CallStream:
        """The stream to that address."""
        stream = self._streams.get(address)
        if stream is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            stream = self._streams[address] = CallStream(channel)
        return stream

    async def keep(self, addresses: Iterable[str], grace_s: float) -> None:
        """Close the streams to all other addresses once their calls end, at most after `grace_s`.

        A replica can be missing from the directory and still be streaming.
        """
        gone = [self._streams.pop(a) for a in set(self._streams) - set(addresses)]
        await asyncio.gather(*(stream.close(grace_s) for stream in gone))

    async def close(self) -> None:
        """Close all, and end their calls."""
        await self.keep((), 0)
