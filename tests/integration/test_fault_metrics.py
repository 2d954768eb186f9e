"""What alerts wake somebody for: each fault, lack or loss is counted when it happens."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from cluster.api import Tokens
from engine.errors import TandemError
from tests import exactness
from tests.eventually import eventually
from tests.integration.local import LocalCluster, cluster
from tests.integration.test_cluster import crowd, small_pool
from tests.metrics_page import recorded


def break_once(replica, verb: str, monkeypatch) -> None:
    """The next call of that verb raises, as an engine does that runs out of memory."""
    worker = replica.parts.worker
    whole = getattr(worker, verb)

    async def broken(*arguments, **named):
        monkeypatch.setattr(worker, verb, whole)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(worker, verb, broken)


async def ask(local: LocalCluster) -> int:
    done = await local.client.complete([5] * 300, max_tokens=8, ignore_eos=True)
    return done.summary.completion_tokens


@pytest.mark.parametrize(("pool", "verb"), [("prefill", "pursue"), ("decode", "step")])
async def test_a_step_that_raises_is_counted_and_fails_its_requests_alone(
    config, pool, verb, monkeypatch
):
    with recorded() as page:
        async with cluster(config) as local:
            (replica,) = getattr(local, pool)
            break_once(replica, verb, monkeypatch)
            with pytest.raises(TandemError):
                await ask(local)
            assert await ask(local) == 8
            await local.idle()
        assert page.value(f"tandem_{pool}_step_failures_total") == 1
        other = {"prefill": "decode", "decode": "prefill"}[pool]
        assert page.value(f"tandem_{other}_step_failures_total") == 0
        assert page.value("tandem_requests_total", outcome="Internal") == 1


async def test_preemptions_are_counted_as_often_as_requests_tell_of_them(config, model):
    cases = [case for case in exactness.make_cases(model, 24) if len(case.prompt) < 400]
    with recorded() as page:
        async with cluster(small_pool(config, 60)) as local:
            told = sum(count for _, count in await crowd(local, cases, 12))
            await local.idle()
        assert page.value("tandem_decode_preemptions_total") == told > 0


async def test_a_lost_replica_its_link_and_what_moved_are_counted(config):
    config = replace(config, decode=replace(config.decode, replicas=2))
    with recorded() as page:
        async with cluster(config) as local:
            streams = [
                local.client.generate([number] * 50, max_tokens=900, ignore_eos=True)
                for number in range(4)
            ]
            for events in streams:
                async for event in events:
                    if isinstance(event, Tokens) and event.index > 2:
                        break
            assert page.value("tandem_replicas_lost_total") == 0
            await local.decode[0].stop()
            for events in streams:
                with contextlib.suppress(TandemError):
                    async for _ in events:
                        pass
            await eventually(lambda: page.value("tandem_replicas_lost_total", role="decode"))
            assert 0 < page.value("tandem_failovers_total") <= len(streams)
            assert page.value("tandem_replicas", role="decode") == 1
            assert page.value("tandem_kv_transfers_total", outcome="committed") >= len(streams)
        assert page.value("tandem_replicas_lost_total", role="decode") == 1
