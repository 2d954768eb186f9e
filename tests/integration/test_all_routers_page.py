"""The console's page over two routers, in a browser: each request has its router."""

from __future__ import annotations

import asyncio

import pytest

from cluster.replica_record import ReplicaRecord
from engine.errors import TandemError
from tandem_client import Client
from tests.e2e.browser import browser, needs_chromium, page_of
from tests.integration.local import OPERATOR_KEY, slow_steps
from tests.integration.test_all_routers import two_routers
from tests.integration.test_console import LONG

pytestmark = [needs_chromium, pytest.mark.timeout(120)]


async def test_the_page_names_the_router_of_each_request_and_stops_it_there(config):
    async with (
        two_routers(config) as (local, other),
        Client(other.grpc_address) as there,
        browser() as chromium,
        page_of(chromium, f"http://{local.router.http_address}/#requests") as page,
    ):
        slow_steps(local.decode, 0.06)  # they run for a minute, however slow the page is
        streams = [
            asyncio.create_task(one.complete([1] * 20, request_id=name, **LONG))
            for one, name in ((local.client, "here"), (there, "there"))
        ]
        row = page.locator("#running-rows tr", has=page.locator("th[title='there']"))
        await row.wait_for()
        assert "router-1" in await row.inner_text()
        await page.get_by_role("button", name="stop there").click()
        await page.fill("#key-input", OPERATOR_KEY)
        await page.press("#key-input", "Enter")
        with pytest.raises(TandemError, match="an operator stopped the request"):
            await streams[1]
        ended = page.locator("#ended-rows tr", has_text="router-1")
        await ended.get_by_role("button", name="there").click()
        await page.locator("#request-body", has_text="router router-1").wait_for()
        assert not await page.locator("#silent-routers").is_visible()
        await local.directory.register(ReplicaRecord("old", "router", "127.0.0.1:1", 1))
        told = page.locator("#silent-routers", has_text="The requests of old are missing")
        await told.wait_for(state="attached")
        streams[0].cancel()
