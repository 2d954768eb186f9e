"""Who a request counts for, and that a tenant's cap is one cap over two routers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
import yaml

from cluster.config.canary import CanaryConfig
from cluster.config.tenant_limits import TenantConfig
from cluster.router.server import RouterServer
from cluster.tenants.fair_share import FairShare
from cluster.tenants.hashed_keys import hash_of
from engine.errors import Cancelled, Unauthenticated
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import cluster, slow_steps
from tests.metrics_page import recorded

# The delay of each step, so that a stream does not end early.
STEP_S = 0.02
CAP = 3


class Running:
    """Counts the choices that all routers together have admitted, and the most at one time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        start, end = FairShare.start, FairShare.end

        def started(fairness, *arguments, **named):
            start(fairness, *arguments, **named)
            self.now += 1
            self.most = max(self.most, self.now)

        def ended(fairness, *arguments, **named):
            end(fairness, *arguments, **named)
            self.now -= 1

        monkeypatch.setattr(FairShare, "start", started)
        monkeypatch.setattr(FairShare, "end", ended)


async def test_a_cap_holds_over_two_routers_and_all_of_it_is_used(config, monkeypatch):
    config = replace(config, tenants={"default": TenantConfig(max_concurrent=CAP)})
    async with cluster(config) as local:
        second = await RouterServer.start(config, "router-1", local.directory)
        try:
            running = Running(monkeypatch)
            async with Client(second.grpc_address) as other:
                await asyncio.gather(
                    *(
                        client.complete([1, 2, 3 + i], max_tokens=24, temperature=0)
                        for i in range(8)
                        for client in (local.client, other)
                    )
                )
            assert running.most == CAP
            await eventually(lambda: running.now == 0)
            await local.idle()
        finally:
            await second.stop()


async def test_without_keys_another_name_is_no_way_around_a_cap(config):
    config = replace(config, tenants={"default": TenantConfig(max_concurrent=1)})
    async with cluster(config) as local:
        slow_steps(local.decode, STEP_S)
        first = local.client.generate([1] * 50, max_tokens=900, ignore_eos=True, tenant="a")
        await anext(first)
        asked = local.client.complete([2] * 50, max_tokens=2, tenant="b")
        second = asyncio.create_task(asked)
        await eventually(lambda: local.router.router.load().waiting or second.done())
        assert not second.done()
        await first.aclose()
        await second


async def test_without_keys_request_log_metrics_and_canaries_know_no_names(config, caplog):
    chat = config.endpoints["chat"]
    trial = replace(chat, canary=CanaryConfig("next", 0.5))
    config = replace(config, endpoints={"chat": trial, "next": chat})
    names, ids = ("a", "b", "c"), [f"r-{number}" for number in range(8)]
    with recorded() as page, caplog.at_level(logging.INFO, "cluster.telemetry.request_log"):
        async with cluster(config) as local:
            for name in names:
                for one in ids:
                    await local.client.complete("x", max_tokens=1, tenant=name, request_id=one)
    rows = [record for record in caplog.records if record.name == "cluster.telemetry.request_log"]
    assert len(rows) == len(names) * len(ids)
    assert {row.tenant for row in rows} == {"default"}
    assert {labels["tenant"] for labels, _ in page.series("tandem_requests_total")} == {"default"}
    # The arm is drawn by the id alone.
    assert len({(row.request_id, row.arm) for row in rows}) == len(ids)


async def test_a_key_cancels_its_own_tenants_requests_alone(config, tmp_path):
    file, names = tmp_path / "keys.yaml", ("a", "b")
    file.write_text(yaml.safe_dump({"tenants": {name: [hash_of(name)] for name in names}}))
    config = replace(config, router=replace(config.router, api_keys=str(file)))
    async with cluster(config) as local:
        slow_steps(local.decode, STEP_S)
        address = local.router.grpc_address
        async with Client(address, api_key="a") as mine, Client(address, api_key="b") as theirs:

            def begin(client):
                return client.generate("x", max_tokens=900, ignore_eos=True, request_id="same")

            first = begin(mine)
            await anext(first)
            with pytest.raises(Unauthenticated):
                await local.client.cancel("same")
            assert not await theirs.cancel("same")
            second = begin(theirs)
            await anext(second)
            assert await theirs.cancel("same")
            with pytest.raises(Cancelled):
                [event async for event in second]
            # The other tenant's goes on.
            await anext(first)
            assert not await theirs.cancel("same")
            assert await mine.cancel("same")
            with pytest.raises(Cancelled):
                [event async for event in first]
        await local.idle()


async def test_a_tenant_is_charged_its_prompts_and_its_answers(config):
    async with cluster(config) as local:
        await local.client.complete([1] * 50, max_tokens=20, ignore_eos=True)
        await local.idle()
        _, charged, _ = local.router.fairness.publish()
    # A token of an answer costs two of a prompt.
    assert charged == {"default": 50 + 2 * 20}
