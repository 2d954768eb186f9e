"""Channels to the routers of one cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from engine.errors import ConfigError
from protos import inference_pb2_grpc
from tandem_client.router_address import Address, RouterAddress, open_channel


@dataclass(frozen=True, slots=True, eq=False)
class RouterChannel:
    """A channel to one router, and the stub of its service."""

    channel: grpc.aio.Channel
    stub: inference_pb2_grpc.InferenceStub


class RouterChannels:
    """A channel to each router. The router that failed last comes last."""

    def __init__(
        self,
        addresses: Address | Sequence[Address],
        options: Sequence[tuple[str, Any]],
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        if isinstance(addresses, str | RouterAddress):
            addresses = [addresses]
        if not addresses:
            raise ConfigError("a client needs the address of a router")
        self._order: list[RouterChannel] = []
        for address in addresses:
            channel = open_channel(address, options, credentials)
            stub = inference_pb2_grpc.InferenceStub(channel)
            self._order.append(RouterChannel(channel, stub))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[RouterChannel]:
        return iter(tuple(self._order))

    @property
    def first(self) -> RouterChannel:
        """The router to call."""
        return self._order[0]

    def failed(self, router: RouterChannel) -> None:
        """Note that a call of this router failed."""
        self._order.remove(router)
        self._order.append(router)

    async def close(self) -> None:
        """Close the channels and cancel what still runs on them."""
        for router in self._order:
            await router.channel.close()
