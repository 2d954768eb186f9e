"""Where `tandem serve` finds the front ends of a router that another host may have."""

from __future__ import annotations

from dataclasses import replace

import httpx

from cluster.client.admin_client import fetch_status
from cluster.config.deployment import RayConfig
from cluster.deploy.launcher import Launcher
from tests.integration.local import OPERATOR_KEY, cluster


async def test_front_ends_on_free_ports_are_found_by_the_routers_record(config):
    router = replace(config.router, http_port=0, grpc_port=0)
    config = replace(config, router=router, ray=RayConfig(address="head:6379"))
    launcher = Launcher(config)
    assert launcher.http_address.endswith(":0")
    async with cluster(config) as local:
        await launcher.find_router()
        assert launcher.grpc_address == local.router.grpc_address
        assert launcher.http_address == local.router.http_address
        assert (await fetch_status(launcher.grpc_address, OPERATOR_KEY)).replicas
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.get(f"http://{launcher.http_address}/healthz")
        assert answer.status_code == 200
