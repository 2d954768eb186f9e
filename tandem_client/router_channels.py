"""Channels to the routers of one cluster, and the choice among them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from tandem_client.errors import ConfigError
from tandem_client.protos import inference_pb2_grpc
from tandem_client.router_address import Address, RouterAddress, open_channel

# Pauses before a router that failed is asked for its health; the last one repeats.
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
# Bound: the time of one health check.
_CHECK_S = 2.0
_CHECK = "/grpc.health.v1.Health/Check"
# A HealthCheckResponse whose status is SERVING. The request, for the whole server, is empty.
_SERVING = b"\x08\x01"


@dataclass(slots=True, eq=False)
class RouterChannel:
    """A channel to one router, and the stub of its service.

    A router that failed at `failed_s` (monotonic) is set aside; 0: it is not.
    """

    channel: grpc.aio.Channel
    stub: inference_pb2_grpc.InferenceStub
    failed_s: float = 0.0

    async def is_serving(self) -> bool:
        """Whether the router says that it serves, by grpc.health.v1."""
        check: Any = self.channel.unary_unary(_CHECK)
        try:
            answer: bytes = await check(b"", timeout=_CHECK_S)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNIMPLEMENTED
        return answer.startswith(_SERVING)


class RouterChannels:
    """A channel to each router. The first one in the given order that is not set aside gets a call.

    A router that failed is set aside until its health check says that it serves. Where all are set
    aside, the router whose failure is the longest ago gets the call.
    """

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
        self._routers: list[RouterChannel] = []
        self._checks: dict[RouterChannel, asyncio.Task[None]] = {}
        for address in addresses:
            channel = open_channel(address, options, credentials)
            stub = inference_pb2_grpc.InferenceStub(channel)
            self._routers.append(RouterChannel(channel, stub))

    def __len__(self) -> int:
        return len(self._routers)

    def __iter__(self) -> Iterator[RouterChannel]:
        return iter(self._routers)

    @property
    def first(self) -> RouterChannel:
        """The router to call."""
        return min(self._routers, key=lambda router: router.failed_s)

    def failed(self, router: RouterChannel) -> None:
        """Set a router aside, because a call of it failed."""
        router.failed_s = time.monotonic()
        if len(self._routers) > 1 and router not in self._checks:
            self._checks[router] = asyncio.create_task(self._check(router))

    async def close(self) -> None:
        """Close the channels and cancel what still runs on them."""
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        for router in self._routers:
            await router.channel.close()

    async def _check(self, router: RouterChannel) -> None:
        """Check the health until the router serves, or until a call of it succeeds."""
        checks = 0
        try:
            while router.failed_s:
                await asyncio.sleep(PAUSES_S[min(checks, len(PAUSES_S) - 1)])
                checks += 1
                if router.failed_s and await router.is_serving():
                    router.failed_s = 0.0
        finally:
            del self._checks[router]
