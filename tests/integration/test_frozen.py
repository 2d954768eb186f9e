"""A decode replica, or a router, in a process of its own that is frozen under its streams."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.failover.member import SECRET
from cluster.config.security import SecurityConfig
from protos.wire.secret import made
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import cluster
from tests.integration.test_prefixes import expected
from tests.integration.test_resume import GREEDY, LONG, PROMPTS, Stream

START_S = 60.0
# It is 1 s on an idle host. Without the mending it was 15 s.
NOTICED_S = 12.0
# Without the mending a client waited for 25 s.
LEFT_S = 20.0


@pytest.fixture
def config(config, tmp_path):
    made(tmp_path / SECRET)
    return replace(
        config,
        prefill=replace(config.prefill, local_prefill_tokens=0),
        security=SecurityConfig(secret_file=str(tmp_path / SECRET)),
    )


@asynccontextmanager
async def member_process(config, role, name):
    """A decode replica, or a router; yields its process and its address."""
    folder = Path(config.security.secret_file).parent
    more = [name, config.directory.url, str(folder), config.model.path]
    command = [sys.executable, "-m", "bench.failover.member", role, *more]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        yield process, json.loads(line)["address"]
    finally:
        process.kill()
        await process.wait()


async def test_streams_of_a_frozen_replica_go_on_and_it_frees_them_when_it_thaws(config, model):
    async with (
        cluster(config) as local,
        member_process(config, "decode", "decode-9") as (frozen, _),
    ):
        pools = local.router.pools
        await eventually(lambda: len(pools.healthy("decode")) == 2)
        streams = [Stream(local, prompt, **GREEDY) for prompt in PROMPTS]
        for stream in streams:
            await stream.has(20)
        frozen.send_signal(signal.SIGSTOP)
        froze_s, before = time.monotonic(), [len(stream.ids) for stream in streams]
        for stream, tokens in zip(streams, before, strict=True):
            await stream.has(tokens + 40)
        assert time.monotonic() - froze_s < NOTICED_S
        await asyncio.gather(*(stream.task for stream in streams))
        assert {stream.summary.decode_replica for stream in streams} == {"decode-0"}
        assert [one.ids for one in streams] == [expected(model, p, LONG) for p in PROMPTS]
        frozen.send_signal(signal.SIGCONT)

        def thawed():
            return [one.load.used for one in pools.healthy("decode") if one.id == "decode-9"]

        await eventually(lambda: thawed() == [0])


async def test_resumable_streams_of_a_frozen_router_go_on_at_another_one(config, model):
    async with (
        cluster(config) as local,
        member_process(config, "router", "router-9") as (frozen, address),
        Client([address, local.router.grpc_address]) as client,
    ):
        streams = [
            Stream(SimpleNamespace(client=client), prompt, resumable=True, **GREEDY)
            for prompt in PROMPTS
        ]
        for stream in streams:
            await stream.has(20)
        frozen.send_signal(signal.SIGSTOP)
        froze_s = time.monotonic()
        await asyncio.gather(*(stream.task for stream in streams))
        assert time.monotonic() - froze_s < LEFT_S
        assert [one.ids for one in streams] == [expected(model, p, LONG) for p in PROMPTS]
        frozen.send_signal(signal.SIGCONT)
