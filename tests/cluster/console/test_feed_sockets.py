"""Pages whose connections take nothing: they keep no place from others."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import httpx

from cluster.console.app import Console
from cluster.console.feed import MOST_VIEWERS
from cluster.tenants.api_keys import ApiKeys
from tests.cluster.console.scripted_source import ScriptedSource
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

ASK = b"GET /console/feed HTTP/1.1\r\nhost: localhost\r\n\r\n"
# A page has its place for 4 s beyond its buffers, which some events fill.
FREE_S = 20.0


class Busy(ScriptedSource):
    """Each event has so many bytes more."""

    def state(self):
        self.sections["tenants"] = {str(self.asked): "x" * 200_000}
        return dict(self.sections)


async def test_connections_that_read_nothing_lose_their_places():
    source = Busy()
    console = Console(source, source, None, ApiKeys({}))
    with ExitStack() as stack:
        async with front_end(ScriptedGenerator(), more_routes=console.routes()) as port:
            for _ in range(MOST_VIEWERS):
                silent = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
                silent.sendall(ASK)
            await eventually(lambda: console.feed.viewers == MOST_VIEWERS)
            began_s = time.monotonic()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                refused = await client.get("/console/feed")
                assert refused.status_code == 429
                assert "a page that reads nothing loses its place" in refused.text
                assert float(refused.headers["retry-after"]) <= FREE_S
                await eventually(lambda: console.feed.viewers == 0, 60, 0.05)
                assert time.monotonic() - began_s < FREE_S
                async with client.stream("GET", "/console/feed") as answer:
                    assert answer.status_code == 200
            await console.close()
