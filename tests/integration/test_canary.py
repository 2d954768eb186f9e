"""A bad canary on a real cluster is rolled back in every router, and harms no other request."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from cluster.cli.status_table import as_data, as_table
from cluster.client.admin_client import fetch_status
from cluster.config.canary import CanaryConfig, GuardConfig
from cluster.config.endpoints import EndpointConfig
from cluster.router.preprocessor import Preprocessor
from cluster.router.server import RouterServer
from cluster.tenants.hashed_keys import hash_of
from engine.errors import Internal, TandemError
from tests.eventually import eventually
from tests.integration.local import OPERATOR_KEY, cluster
from tests.metrics_page import recorded

DELAY_S = 1.0


def with_canary(config, bad: EndpointConfig, **guard):
    """Half of `chat` is served as `next`."""
    known = GuardConfig(**{"min_requests": 5, "window_s": 1000, **guard})
    chat = replace(config.endpoints["chat"], canary=CanaryConfig("next", 0.5, known))
    return replace(config, endpoints={"chat": chat, "next": bad})


async def ask(local, number):
    """One request; how it ended: its tokens, or its error."""
    try:
        answer = await local.client.complete(
            [1, 2, number % 50 + 3], max_tokens=4, temperature=0, request_id=f"r-{number}"
        )
    except TandemError as error:
        return error
    return answer


async def test_a_slow_canary_is_rolled_back_in_every_router_and_stays_so(
    config, caplog, monkeypatch
):
    config = with_canary(config, config.endpoints["chat"])
    caplog.set_level(logging.INFO, "cluster.telemetry.request_log")
    caplog.set_level(logging.INFO, "cluster.router.canary.routing")
    async with cluster(config) as local:
        second = await RouterServer.start(
            config, "router-1", local.directory, operators=[hash_of(OPERATOR_KEY)]
        )
        try:
            prepare = Preprocessor.prepare

            async def slow(preprocessor, request, *rest):
                if request.endpoint == "next":
                    await asyncio.sleep(DELAY_S)
                return await prepare(preprocessor, request, *rest)

            monkeypatch.setattr(Preprocessor, "prepare", slow)
            number = 0
            async with asyncio.timeout(100):
                while (await state(local.router))["rolled_back"] is None:
                    answers = await asyncio.gather(*(ask(local, number + i) for i in range(8)))
                    number += 8
                    assert not any(isinstance(answer, TandemError) for answer in answers)
            seen = await state(local.router)
            assert "TTFT p95" in seen["rolled_back"]
            await eventually(lambda: rolled_back(second))
            before = seen["arms"]["canary"]["requests"]
            for more in range(20):
                await ask(local, number + more)
            assert (await state(local.router))["arms"]["canary"]["requests"] == before
            await local.idle()
        finally:
            await second.stop()
    rows = [record for record in caplog.records if record.name == "cluster.telemetry.request_log"]
    assert {row.endpoint for row in rows} == {"chat"}
    assert {row.arm for row in rows} == {"stable", "canary"}
    assert [record.message for record in caplog.records].count("canary rolled back") == 2


async def test_a_canary_whose_requests_fail_is_rolled_back_and_no_other_fails(config, monkeypatch):
    config = with_canary(config, config.endpoints["chat"], error_rate=0.2)
    with recorded() as page:
        failed = await rolled_back_for_failing(config, monkeypatch)
    arms = {arm: {"endpoint": "chat", "arm": arm} for arm in ("stable", "canary")}
    assert page.value("tandem_canary_rolled_back", endpoint="chat") == 1
    served = {"outcome": "Internal", **arms["canary"]}
    assert page.value("tandem_canary_requests_total", **served) == failed
    assert page.value("tandem_canary_ttft_seconds_count", **arms["stable"]) >= 20


async def rolled_back_for_failing(config, monkeypatch):
    """How many failed until then; none does afterwards."""
    async with cluster(config) as local:
        prepare = Preprocessor.prepare

        async def failing(preprocessor, request, *rest):
            if request.endpoint == "next":
                raise Internal("injected")
            return await prepare(preprocessor, request, *rest)

        monkeypatch.setattr(Preprocessor, "prepare", failing)
        failed, number = [], 0
        async with asyncio.timeout(100):
            while (await state(local.router))["rolled_back"] is None:
                answer = await ask(local, number)
                failed.append(isinstance(answer, TandemError))
                number += 1
        assert any(failed)
        after = [await ask(local, number + more) for more in range(20)]
        assert not any(isinstance(answer, TandemError) for answer in after)
        arms = (await state(local.router))["arms"]
        assert arms["stable"]["failed"] == 0 and arms["canary"]["failed"] == sum(failed)
        table = as_table(await fetch_status(local.router.grpc_address, OPERATOR_KEY))
        assert "canary chat -> next: rolled back:" in table
        await local.idle()
        return sum(failed)


async def rolled_back(router: RouterServer) -> bool:
    return (await state(router))["rolled_back"] is not None


async def state(router: RouterServer):
    """The canary in the router's answer to `tandem status`."""
    return as_data(await fetch_status(router.grpc_address, OPERATOR_KEY))["canaries"][0]
