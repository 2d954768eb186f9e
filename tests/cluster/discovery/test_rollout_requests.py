"""Requests for a rollout or a stop: which of them the launcher obeys, and how it answers."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from redis.asyncio import Redis

from cluster.config.tls import CertificateConfig, TlsConfig
from cluster.deploy.stop_request import stop_requested
from cluster.discovery.request_seal import RequestSeal
from cluster.discovery.rollout import (
    NOT_OF_THIS_RUN,
    RolloutRequest,
    Rollouts,
    RolloutState,
    document_of,
)
from cluster.discovery.timed_seal import MOST_AGE_S
from protos import router_pb2
from protos.wire.secret import ClusterSecret
from tests.cluster.discovery.launcher import (
    OTHER,
    RUNNING,
    SEAL,
    Aborted,
    Context,
    Serve,
    admin_of,
    received,
    rolled_out,
)
from tests.cluster.discovery.members import SECRET

OLD_SEAL = RequestSeal(SECRET, "launcher", lambda: time.time() - MOST_AGE_S - 60)


async def test_while_one_is_under_way_another_is_refused(directory) -> None:
    admin = admin_of(directory)
    request = received(router_pb2.RolloutRequest(configuration=document_of(RUNNING)))
    await directory.listen_for_stop(SEAL.launcher)
    context = Context()
    asked = await admin.Rollout(request, context)
    with pytest.raises(Aborted, match="another rollout is under way"):
        await admin.Rollout(request, context)
    status = await admin.Status(received(router_pb2.StatusRequest()), context)
    assert (status.rollout.id, status.rollout.state) == (asked.id, "asked")
    await Rollouts(RUNNING, Serve(directory), lambda config: config, print, SEAL).poll(directory)
    assert (await admin.Rollout(request, context)).id != asked.id


async def test_a_rollout_that_fetches_its_model_is_under_way(directory, server) -> None:
    """Its state does not expire once the launcher has taken it, however long that takes."""
    admin = admin_of(directory)
    request = received(router_pb2.RolloutRequest(configuration=document_of(RUNNING)))
    fetching, fetched = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def fetch(config):
        loop.call_soon_threadsafe(fetching.set)
        assert fetched.wait(10)
        return config

    await directory.listen_for_stop(SEAL.launcher)
    await admin.Rollout(request, Context())
    rollouts = Rollouts(RUNNING, Serve(directory), fetch, print, SEAL)
    looking = asyncio.create_task(rollouts.poll(directory))
    await asyncio.wait_for(fetching.wait(), 10)
    async with Redis.from_url(server.url) as client:
        assert await client.pttl("tandem:rollout:state") == -1
    with pytest.raises(Aborted, match="another rollout is under way"):
        await admin.Rollout(request, Context())
    fetched.set()
    await looking


async def test_without_a_launcher_no_rollout_can_be_requested(directory) -> None:
    assert not await directory.request_rollout("{}", RolloutState("id").to_json())
    assert await directory.take_rollout() is None
    await directory.listen_for_stop(SEAL.launcher)
    assert await directory.request_rollout("{}", RolloutState("id").to_json())
    await directory.clear_stop()
    assert await directory.take_rollout() is None
    assert await directory.rollout_state() is None


@pytest.mark.parametrize(
    "forged",
    [
        RolloutRequest("id", document_of(OTHER)),
        RolloutRequest("id", document_of(OTHER), seal="no hex"),
        replace(RolloutRequest("id", document_of(OTHER)).sealed(SEAL), operator="alice"),
        replace(RolloutRequest("id", document_of(OTHER)).sealed(SEAL), weaken_security=True),
        replace(RolloutRequest("id", document_of(OTHER)).sealed(SEAL), restart=True),
        RolloutRequest("id", document_of(OTHER)).sealed(
            RequestSeal(ClusterSecret(b"the secret of another"), "launcher")
        ),
        RolloutRequest("id", document_of(OTHER)).sealed(RequestSeal(SECRET, "an earlier run")),
        RolloutRequest("id", document_of(OTHER)).sealed(OLD_SEAL),
        replace(RolloutRequest("id", "{}").sealed(SEAL), configuration=document_of(OTHER)),
        replace(RolloutRequest("other", document_of(OTHER)).sealed(SEAL), id="id"),
    ],
)
async def test_who_can_only_write_to_redis_rolls_nothing_out(directory, forged) -> None:
    serve = Serve(directory)
    rollouts = Rollouts(RUNNING, serve, lambda config: config, print, SEAL)
    await directory.listen_for_stop(SEAL.launcher)
    assert await directory.request_rollout(forged.to_json(), RolloutState("id").to_json())
    await rollouts.poll(directory)
    state = RolloutState.from_json(await directory.rollout_state())
    assert (state.state, state.reason) == ("failed", NOT_OF_THIS_RUN)
    assert rollouts.config == RUNNING
    assert not serve.begun


async def test_refused_requests_end_nothing_and_fill_no_log(directory, caplog) -> None:
    serve, lines = Serve(directory), []
    rollouts = Rollouts(RUNNING, serve, lambda config: config, lines.append, SEAL)
    await directory.listen_for_stop(SEAL.launcher)
    forged = RolloutRequest("id", "\ud800").to_json()
    for wrong in (
        "",
        "[]",
        "3",
        '{"id": "a"}',
        "[" * 100_000,
        forged,
        '{"id":1,"configuration":2}',
    ):
        assert await directory.request_rollout(wrong, RolloutState("id").to_json())
        await rollouts.poll(directory)
        assert await directory.request_stop("no signature")
        assert not await stop_requested(directory, None, SEAL)
    assert not serve.begun and not lines
    assert len([one for one in caplog.messages if "rollouts are refused" in one]) == 1
    assert len([one for one in caplog.messages if "stop requests" in one]) <= 1


async def test_a_rollout_that_is_written_to_redis_again_is_not_carried_out_again(directory) -> None:
    serve = Serve(directory)
    rollouts, _, _ = await rolled_out(directory, serve, OTHER)
    request = RolloutRequest("id", document_of(OTHER)).sealed(SEAL)
    assert await directory.request_rollout(request.to_json(), RolloutState("id").to_json())
    await rollouts.poll(directory)
    assert RolloutState.from_json(await directory.rollout_state()).state == "failed"
    assert len(serve.begun) == 1


async def test_a_stop_request_is_heard_with_the_secret_alone(directory) -> None:
    stopped = partial(stop_requested, directory, None, SEAL)
    assert not await stopped()
    earlier = RequestSeal(SECRET, "an earlier run").of_stop()
    for forged in ("1", "", earlier, OLD_SEAL.of_stop()):
        assert await directory.request_stop(forged)
        assert not await stopped()
        assert await directory.listen_for_stop(SEAL.launcher) is None
    admin = admin_of(directory)
    await admin.Stop(received(router_pb2.StopRequest()), Context())
    assert await stopped()


GUARDED = replace(RUNNING, router=replace(RUNNING.router, api_keys="/keys.yaml"))


@pytest.mark.parametrize("said", [False, True])
async def test_the_launcher_weakens_security_only_where_the_request_says_so(directory, said):
    serve, lines = Serve(directory), []
    rollouts = Rollouts(GUARDED, serve, lambda config: config, lines.append, SEAL)
    await directory.listen_for_stop(SEAL.launcher)
    request = RolloutRequest("id", document_of(OTHER), "alice", said).sealed(SEAL)
    assert RolloutRequest.from_json(request.to_json()) == request
    assert await directory.request_rollout(request.to_json(), RolloutState("id").to_json())
    await rollouts.poll(directory)
    state = RolloutState.from_json(await directory.rollout_state())
    assert state.state == ("serving" if said else "failed")
    if said:
        assert lines[0] == "rollout by alice weakens router.api_keys: /keys.yaml removed"
    else:
        assert "--weaken-security" in state.reason and not serve.begun


async def test_a_rollout_that_adds_keys_says_what_it_does_not_close(directory) -> None:
    admin = admin_of(directory)
    await directory.listen_for_stop(SEAL.launcher)
    request = router_pb2.RolloutRequest(configuration=document_of(GUARDED))
    (notice,) = (await admin.Rollout(received(request), Context())).notices
    assert "Ray's pages of metrics stay open" in notice
    lines = []
    rollouts = Rollouts(RUNNING, Serve(directory), lambda config: config, lines.append, SEAL)
    await rollouts.poll(directory)
    assert lines[0].endswith(notice)


async def test_a_rollout_without_the_section_tls_says_that_the_running_one_stays(directory) -> None:
    running = replace(RUNNING, tls=TlsConfig(CertificateConfig("/c.pem", "/k.pem")))
    admin = admin_of(directory, running)
    await directory.listen_for_stop(SEAL.launcher)
    request = router_pb2.RolloutRequest(configuration=document_of(OTHER))
    (notice,) = (await admin.Rollout(received(request), Context())).notices
    assert notice.startswith("the running `tls` stays")
    lines = []
    rollouts = Rollouts(running, Serve(directory), lambda config: config, lines.append, SEAL)
    await rollouts.poll(directory)
    assert lines[0] == f"rollout by anybody: {notice}"
    assert rollouts.config.tls == running.tls
