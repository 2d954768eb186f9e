"""A decode replica whose connection for calls alone is cut off, while its reports go on."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cluster.replica import replica as replica_module
from cluster.replica.replica import Replica
from cluster.replica.servers import ReplicaServers
from tests.chaos.cables import Cables, dial_tcp
from tests.eventually import eventually
from tests.integration.local import HOST, cluster, in_use
from tests.integration.test_prefixes import expected
from tests.integration.test_resume import GREEDY, LONG, PROMPTS, Stream

NAME = "decode-9"
# It is 1.2 to 1.4 s on an idle host. Without the mending it was 15 s.
NOTICED_S = 12.0


@pytest.fixture
def config(config):
    return replace(config, prefill=replace(config.prefill, local_prefill_tokens=0))


@asynccontextmanager
async def replica_behind(cables, config, directory, monkeypatch):
    """A decode replica that others reach by a cable alone."""
    port = asyncio.get_running_loop().create_future()
    address = await cables.lay(NAME, dial_tcp(lambda: asyncio.shield(port)))

    class BehindCables(ReplicaServers):
        @classmethod
        def bind(cls, *arguments):
            servers = super().bind(*arguments)
            port.set_result(int(servers.address.rpartition(":")[2]))
            servers.address = address
            return servers

    with monkeypatch.context() as patched:
        patched.setattr(replica_module, "ReplicaServers", BehindCables)
        replica = await Replica.start(config, "decode", NAME, HOST, directory)
    try:
        yield replica
    finally:
        await replica.stop()


async def test_streams_go_on_whose_replica_reports_and_gets_no_calls(config, model, monkeypatch):
    cables = Cables(dict)
    async with (
        cluster(config) as local,
        replica_behind(cables, config, local.directory, monkeypatch) as replica,
    ):
        await eventually(lambda: len(local.router.pools.healthy("decode")) == 2)
        streams = [Stream(local, prompt, **GREEDY) for prompt in PROMPTS]
        for stream in streams:
            await stream.has(20)
        assert in_use(replica)
        with cables.weather(lambda wire: wire.kind == "calls") as held:
            held_s, before = time.monotonic(), [len(stream.ids) for stream in streams]
            for stream, tokens in zip(streams, before, strict=True):
                await stream.has(tokens + 40)
            assert time.monotonic() - held_s < NOTICED_S
            assert held.met
            assert NAME not in local.router.pools.stale()
        await asyncio.gather(*(stream.task for stream in streams))
        assert [one.ids for one in streams] == [expected(model, p, LONG) for p in PROMPTS]
        await eventually(lambda: not in_use(replica))
    await cables.close()
