"""Two routers in front of one cluster: a tenant's cap is one cap."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from cluster.client import Client
from cluster.router_server import RouterServer
from cluster.tenant_caps import TenantConfig
from tests.integration.local import cluster

CAP = 3


def running(*routers: RouterServer) -> int:
    """Requests that the routers have admitted for everyone."""
    uses = [router._fairness.say()[0] for router in routers]
    return sum(found.get(("default", "concurrent")).used if found else 0 for found in uses)


async def test_a_cap_holds_over_two_routers_and_all_of_it_is_used(config):
    config = replace(config, tenants={"default": TenantConfig(max_concurrent=CAP)})
    async with cluster(config) as local:
        second = await RouterServer.start(config, "router-1", local.directory)
        try:
            seen: list[int] = []

            async def watch() -> None:
                while True:
                    seen.append(running(local.router, second))
                    await asyncio.sleep(0.002)

            watching = asyncio.create_task(watch())
            async with Client(second.grpc_address) as other:
                await asyncio.gather(
                    *(
                        client.complete([1, 2, 3 + i], max_tokens=24, temperature=0)
                        for i in range(8)
                        for client in (local.client, other)
                    )
                )
            watching.cancel()
            assert max(seen) == CAP
            await local.idle()
        finally:
            await second.stop()
