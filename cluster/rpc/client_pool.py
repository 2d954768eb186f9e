"""The streams to replicas, one per address, kept while the replica lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cluster.rpc.client_stream import CallStream
from cluster.rpc.fair_dispatch import FairDispatcher


class CallStreams:
    """Makes the stream to an address when it is first asked for."""

    def __init__(self) -> None:
        self._streams: dict[str, CallStream] = {}
        # One for all, however many replicas there are.
        self._turns = FairDispatcher()

    def to(self, address: str) -> CallStream:
        """The stream to that address."""
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = CallStream(address, self._turns)
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
