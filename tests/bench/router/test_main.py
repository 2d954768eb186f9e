"""What the router's benchmark stands on: fake replicas, a real router, clients that check."""

from __future__ import annotations

import asyncio
import os
import time

import grpc.aio
import pytest

from bench.router.bare_router import config_for, endless_model
from bench.router.direct_front_ends import DirectFrontEnds
from bench.router.fake_replicas import serve
from bench.router.main import spent_s
from bench.router.site_tls import make_certificates
from bench.router.stream_load import (
    OutOfOrder,
    StreamSpec,
    Taken,
    first_token_s,
    one_hop_s,
    streams_to,
)
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from cluster.router.server import RouterServer

ASK = StreamSpec("coalesced", 2, 24, 100)


def _without_the_first_tokens(pieces):
    """Pieces are messages at one front end; at the other what was read at a time, of any length."""
    head, *events = b"".join(pieces).split(b"data: ")
    if not events:
        return pieces[:1] + pieces[2:]
    return [head, *(b"data: " + event for event in events[1:])]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_streams_through_a_router_come_whole_at_both_front_ends(tmp_path, tls):
    redis = await asyncio.to_thread(EmbeddedRedis.start)
    model, authority = endless_model(tmp_path), make_certificates(tmp_path) if tls else None
    config = config_for(redis.url, model)
    directory = Directory.of(config)
    prefill = await serve("prefill", directory, config)
    decode = await serve("decode", directory, config)
    router = await RouterServer.start(config, "router-0", directory)
    try:
        front_ends = {"grpc": router.grpc_address, "http": router.http_address}
        for client in (streams_to(*front_end, authority) for front_end in front_ends.items()):
            several = [Taken() for _ in range(5)]
            await asyncio.wait_for(asyncio.gather(*(client.run(ASK, one) for one in several)), 60)
            for taken in several:
                messages, tokens = client.check(taken, 0, len(taken.pieces))
                assert tokens == 100
                assert messages > 1
                assert taken.first_s is not None
                taken.pieces = _without_the_first_tokens(taken.pieces)
                with pytest.raises(OutOfOrder):
                    client.check(taken, 0, len(taken.pieces))
            await client.close()
        async with grpc.aio.insecure_channel(prefill.echo) as channel:
            assert await asyncio.wait_for(one_hop_s(channel), 10) > 0
    finally:
        await router.stop()
        await decode.close()
        await prefill.close()
        await directory.close()
        await asyncio.to_thread(redis.stop)


async def test_a_replicas_own_front_ends_give_the_first_token(tmp_path):
    redis = await asyncio.to_thread(EmbeddedRedis.start)
    config = config_for(redis.url, endless_model(tmp_path))
    directory = Directory.of(config)
    prefill = await serve("prefill", directory, config)
    direct = await DirectFrontEnds.open(prefill.answer)
    try:
        for client in (streams_to("grpc", direct.grpc), streams_to("http", direct.http)):
            took_s = first_token_s(lambda taken, client=client: client.run(ASK, taken))
            assert await asyncio.wait_for(took_s, 30) > 0
            await client.close()
    finally:
        await direct.stop()
        await prefill.close()
        await directory.close()
        await asyncio.to_thread(redis.stop)


def test_the_cpu_of_a_process_is_that_of_its_own_clock():
    before_s = time.process_time()
    found_s = spent_s(os.getpid())
    assert before_s <= found_s <= time.process_time()
