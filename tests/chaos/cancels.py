"""The ways in which a request of the chaos is ended, some of which end it several times at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, get_args

import httpx

from engine.errors import TandemError
from engine.kv.prefix_digest import DEFAULT_TENANT
from tests.chaos.web_clients import Clients, FrontEnd

OPERATOR_KEY = "the operator's key of the chaos"
CancelWay = Literal["once", "twice", "everywhere", "leaving"]
WAYS: tuple[CancelWay, ...] = get_args(CancelWay)
# Bound: tries of a cancel that no router could answer. The client pauses between its own tries.
_TRIES = 5


async def cancel(
    way: CancelWay, clients: Clients, front_end: FrontEnd, name: str, stream_id: str
) -> None:
    """End the request of that name. Where no router can be asked, it goes on.

    once        as its client does
    twice       the same, two times at once
    everywhere  by its client, by its id and its stream's id over gRPC, and by an operator
    leaving     by its id over gRPC, while its client leaves
    """
    acts: list[Callable[[], Awaitable[object]]] = []
    if way != "leaving":
        acts += [lambda: clients.of(front_end).cancel(name)] * (2 if way == "twice" else 1)
    if way in ("everywhere", "leaving"):
        acts.append(lambda: clients.grpc.cancel(name))
    if way == "everywhere":
        acts.append(lambda: _stop(clients, name))
        if stream_id:
            acts.append(lambda: clients.grpc.cancel(stream_id=stream_id))
    await asyncio.gather(*map(_persistently, acts))


async def _persistently(act: Callable[[], Awaitable[object]]) -> None:
    for _ in range(_TRIES):
        with suppress(TandemError):
            await act()
            return


async def _stop(clients: Clients, name: str) -> None:
    """Have an operator stop it, at the first router that answers."""
    headers = {"authorization": f"Bearer {OPERATOR_KEY}"}
    query = {"id": name, "tenant": DEFAULT_TENANT}
    for door in clients.http_doors:
        with suppress(httpx.TransportError):
            url = f"http://{door}/console/stop"
            await clients.http.post(url, params=query, headers=headers)
            return
