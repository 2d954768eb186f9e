"""Channels to the routers of one cluster, and the choice among them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from tandem_client.errors import ConfigError
from tandem_client.protos import inference_pb2_grpc
from tandem_client.router_address import Address, RouterAddress, open_channel
from tandem_client.silence_watch import SilenceWatch

# Pauses before a router that failed is asked for its health; the last one repeats.
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
# Bound: connections to one address, the newest of which gets the calls.
_MOST_CONNECTIONS = 2
# Bound: the time of one health check.
_CHECK_S = 2.0
_CHECK = "/grpc.health.v1.Health/Check"
# A HealthCheckResponse whose status is SERVING. The request, for the whole server, is empty.
_SERVING = b"\x08\x01"


class RouterChannel:
    """A channel to one router, and the stub of its service. `silence` watches calls that stream.

    `connect` makes the channel. A router that failed at `failed_s` (monotonic) is set aside; 0: it
    is not.
    """

    def __init__(self, connect: Callable[[], grpc.aio.Channel]) -> None:
        self._connect = connect
        self._channels = [connect()]
        self._closing: set[asyncio.Task[None]] = set()
        self.stub = inference_pb2_grpc.InferenceStub(self._channels[-1])
        self.silence = SilenceWatch(self.is_there, self.reconnect)
        self.failed_s = 0.0

    def reconnect(self) -> None:
        """Call over a new connection. Another router may listen at the address of a silent one.

        Calls on the last connection may go on.
        """
        self._channels.append(self._connect())
        self.stub = inference_pb2_grpc.InferenceStub(self._channels[-1])
        while len(self._channels) > _MOST_CONNECTIONS:
            closing = asyncio.create_task(self._channels.pop(0).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the connections and cancel what still runs on them."""
        self.silence.close()
        await asyncio.gather(*self._closing, *(one.close() for one in self._channels))

    async def is_serving(self) -> bool:
        """Whether the router says that it serves, by grpc.health.v1."""
        try:
            answer = await self._check(_CHECK_S)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNIMPLEMENTED
        return answer.startswith(_SERVING)

    async def is_there(self, within_s: float) -> bool:
        """Whether the router says anything in time. A connection that breaks is no silence."""
        try:
            await self._check(within_s)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        return True

    async def _check(self, timeout_s: float) -> bytes:
        check: Any = self._channels[-1].unary_unary(_CHECK)
        answer: bytes = await check(b"", timeout=timeout_s)
        return answer


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
            connect = partial(open_channel, address, options, credentials)
            self._routers.append(RouterChannel(connect))

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
            await router.close()

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
