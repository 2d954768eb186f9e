"""A rollout as the launcher carries it out: what follows what, and what happens where it fails."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from redis.asyncio import Redis

from cluster.config.deployment import DirectoryConfig
from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig
from cluster.config.version import config_version
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.deploy.stop_request import stop_requested
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.discovery.request_seal import RequestSeal
from cluster.discovery.rollout import (
    NOT_OF_THIS_RUN,
    RolloutRequest,
    Rollouts,
    RolloutState,
    document_of,
    next_config,
    there,
)
from cluster.discovery.timed_seal import MOST_AGE_S
from cluster.gateway.grpc_methods import Received
from cluster.replica_record import ReplicaRecord
from cluster.router.admin_service import AdminServicer
from cluster.rpc.membership import Membership
from cluster.tenants.api_keys import ApiKeys
from decode_pool.config import DecodeConfig
from engine.errors import ConfigError, Unavailable
from prefill_pool.config import PrefillConfig
from protos import router_pb2
from protos.wire.secret import ClusterSecret
from tests.cluster.discovery.members import SECRET
from tests.cluster.discovery.test_version_handover import Roster, record


@pytest.fixture(scope="module")
def redis():
    server = EmbeddedRedis.start()
    yield server
    server.stop()


@pytest.fixture
def namespace():
    return f"n{time.time_ns()}"


@pytest.fixture
async def directory(redis, namespace):
    directory = Directory.connect(DirectoryConfig(url=redis.url, namespace=namespace), SECRET)
    yield directory
    await directory.close()


RUNNING = TandemConfig(
    directory=DirectoryConfig(url="unix:///x"),
    router=RouterConfig(grpc_port=4711),
    security=SecurityConfig("/run/secret"),
)
OTHER = TandemConfig(decode=DecodeConfig(max_batch=7))
MEMBERSHIP = Membership(SECRET)
SEAL = RequestSeal(SECRET, "launcher")
OLD_SEAL = RequestSeal(SECRET, "launcher", lambda: time.time() - MOST_AGE_S - 60)


class Serve:
    """What would put replicas on a cluster: here they are in the directory at once, or never."""

    def __init__(self, directory: Directory, *, fails: str | None = None) -> None:
        self.begun: list[TandemConfig] = []
        self._directory = directory
        self._fails = fails
        self._loop = asyncio.get_running_loop()

    def begin(self, config: TandemConfig) -> None:
        self.begun.append(config)
        if self._fails is None:
            asyncio.run_coroutine_threadsafe(self.appear(config), self._loop).result(10)

    def failure(self) -> str | None:
        return self._fails

    async def appear(self, config: TandemConfig) -> None:
        for role in ("prefill", "decode", "router"):
            one = replace(record(role, role), config=config_version(config))
            await self._directory.register(one)


async def rolled_out(directory, serve, config, prepare=lambda config: config):
    lines = []
    rollouts = Rollouts(RUNNING, serve, prepare, lines.append, SEAL)
    await directory.listen_for_stop(SEAL.launcher)
    document = config if isinstance(config, str) else document_of(config)
    request = RolloutRequest("id", document).sealed(SEAL)
    assert await directory.request_rollout(request.to_json(), RolloutState("id").to_json())
    await rollouts.poll(directory)
    await rollouts.poll(directory)  # once only
    state = RolloutState.from_json(await directory.rollout_state())
    return rollouts, state, lines


async def test_another_configuration_takes_over_where_the_old_one_was(directory) -> None:
    serve = Serve(directory)
    rollouts, state, lines = await rolled_out(directory, serve, OTHER)
    (begun,) = serve.begun
    assert begun.decode.max_batch == 7
    assert begun.directory == RUNNING.directory
    assert begun.router.grpc_port == 4711
    assert rollouts.config == begun
    assert (state.state, state.version) == ("serving", config_version(begun))
    assert lines == [f"rollout {state.version}: starting", f"rollout {state.version}: serving"]


async def test_a_rollout_of_what_runs_replaces_nothing_and_names_its_version(directory) -> None:
    serve = Serve(directory)
    _, state, _ = await rolled_out(directory, serve, RUNNING)
    assert serve.begun == []
    assert (state.state, state.version) == ("serving", config_version(RUNNING))


async def test_another_default_endpoint_is_rolled_out(directory) -> None:
    serve = Serve(directory)
    turned = dict(reversed(RUNNING.endpoints.items()))
    _, state, _ = await rolled_out(directory, serve, replace(RUNNING, endpoints=turned))
    (begun,) = serve.begun
    assert begun.default_endpoint == list(RUNNING.endpoints)[-1]
    assert (state.state, state.version) == ("serving", config_version(begun))


async def test_where_the_new_one_does_not_come_up_the_old_one_is_deployed_again(directory) -> None:
    serve = Serve(directory, fails="decode: not enough memory")
    rollouts, state, _ = await rolled_out(directory, serve, OTHER)
    assert [config.decode.max_batch for config in serve.begun] == [7, RUNNING.decode.max_batch]
    assert rollouts.config == RUNNING
    assert (state.state, state.reason) == ("failed", "decode: not enough memory")


async def test_a_fault_on_the_way_fails_it_and_brings_the_old_one_back(directory) -> None:
    serve = Serve(directory)
    serve.appear = lambda config: asyncio.sleep(0)

    def broken():
        raise RuntimeError("the controller died")

    serve.failure = broken
    rollouts, state, _ = await rolled_out(directory, serve, OTHER)
    assert (state.state, state.reason) == ("failed", "internal error: RuntimeError")
    assert serve.begun[1:] == [RUNNING]
    assert rollouts.config == RUNNING


def received(message):
    """The message as a server hands it over."""
    return Received(type(message), message.SerializeToString())


async def test_while_one_is_under_way_another_is_refused(directory) -> None:
    admin = AdminServicer(HealthyReplicas(Roster()), directory, RUNNING, Anybody({}), MEMBERSHIP)
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


async def test_a_rollout_that_fetches_its_model_is_under_way(directory, redis, namespace) -> None:
    """Its state does not expire once the launcher has taken it, however long that takes."""
    admin = AdminServicer(HealthyReplicas(Roster()), directory, RUNNING, Anybody({}), MEMBERSHIP)
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
    async with Redis.from_url(redis.url) as client:
        assert await client.pttl(f"tandem:{namespace}:rollout:state") == -1
    with pytest.raises(Aborted, match="another rollout is under way"):
        await admin.Rollout(request, Context())
    fetched.set()
    await looking


async def test_the_end_of_a_rollout_is_published_after_an_outage(directory, monkeypatch) -> None:
    failing, tell = 1, directory.set_rollout_state

    async def tell_or_fail(text):
        nonlocal failing
        if failing and RolloutState.from_json(text).state == "serving":
            failing -= 1
            raise Unavailable("gone")
        await tell(text)

    monkeypatch.setattr(directory, "set_rollout_state", tell_or_fail)
    _, state, _ = await rolled_out(directory, Serve(directory), RUNNING)
    assert (failing, state.state) == (0, "serving")


class Aborted(Exception):
    """What a call ends with."""


class Anybody(ApiKeys):
    """Everybody is an operator."""

    def operator(self, authorization):
        return "anybody"


class Context:
    """A gRPC call, as far as a servicer needs it."""

    def invocation_metadata(self):
        return ()

    async def abort(self, code, details="", trailing_metadata=()):
        raise Aborted(details)


async def test_time_has_an_end(directory) -> None:
    serve = Serve(directory)
    serve.appear = lambda config: asyncio.sleep(0)
    hasty = replace(OTHER, ray=replace(OTHER.ray, ready_timeout_s=0.3))
    _, state, _ = await rolled_out(directory, serve, hasty)
    assert (state.state, len(serve.begun)) == ("failed", 2)
    assert "ray.ready_timeout_s" in state.reason


async def test_a_wrong_or_running_configuration_begins_no_rollout(directory) -> None:
    def refuse(config):
        raise ConfigError("there is no folder")

    serve = Serve(directory)
    for config, prepare in (
        (json.dumps({"decode": {"max_batch": -1}}), lambda config: config),
        ("no JSON", lambda config: config),
        (OTHER, refuse),
    ):
        _, state, _ = await rolled_out(directory, serve, config, prepare)
        assert state.state == "failed"
        assert state.reason
    _, state, _ = await rolled_out(directory, serve, RUNNING)
    assert state.state == "serving"
    assert serve.begun == []


async def test_without_a_launcher_no_rollout_can_be_requested(directory) -> None:
    assert not await directory.request_rollout("{}", RolloutState("id").to_json())
    assert await directory.take_rollout() is None
    await directory.listen_for_stop(SEAL.launcher)
    assert await directory.request_rollout("{}", RolloutState("id").to_json())
    await directory.clear_stop()
    assert await directory.take_rollout() is None
    assert await directory.rollout_state() is None


def test_a_version_is_there_with_all_its_replicas_and_a_router() -> None:
    config = replace(OTHER, prefill=PrefillConfig(replicas=2))
    own: list[ReplicaRecord] = [
        replace(record(f"{role}{n}", role), config="v")
        for role, n in (("prefill", 0), ("prefill", 1), ("decode", 0), ("router", 0))
    ]
    assert there(config, "v", own)
    assert not there(config, "v2", own)
    for lacking in range(len(own)):
        assert not there(config, "v", own[:lacking] + own[lacking + 1 :])
        one = replace(own[lacking], leaving=True)
        assert not there(config, "v", [*own[:lacking], one, *own[lacking + 1 :]])


def test_a_stored_state_reads_back() -> None:
    for state in (RolloutState("a"), RolloutState("a", "v", "failed", "why")):
        assert RolloutState.from_json(state.to_json()) == state
    request = RolloutRequest("a", document_of(OTHER)).sealed(SEAL)
    assert RolloutRequest.from_json(request.to_json()) == request
    for wrong in (
        "[]",
        "{}",
        '{"id": "a", "state": "odd"}',
        '{"id": "a", "more": 1}',
        '{"id": 1}',
        "[" * 100_000,
    ):
        with pytest.raises(ValueError):
            RolloutState.from_json(wrong)


def test_addresses_of_clients_and_replicas_stay() -> None:
    asked = TandemConfig(router=RouterConfig(http_port=1, max_requests=5))
    config = next_config(RUNNING, asked)
    assert config.router.max_requests == 5
    assert config.router.http_port == RUNNING.router.http_port
    assert config.ray.address == RUNNING.ray.address


def test_a_rollout_keeps_the_secret_of_the_running_cluster() -> None:
    asked = TandemConfig(security=SecurityConfig("/tmp/of-another"))
    assert next_config(RUNNING, asked).security == RUNNING.security


@pytest.mark.parametrize(
    "forged",
    [
        RolloutRequest("id", document_of(OTHER)),
        RolloutRequest("id", document_of(OTHER), seal="no hex"),
        replace(RolloutRequest("id", document_of(OTHER)).sealed(SEAL), operator="alice"),
        replace(RolloutRequest("id", document_of(OTHER)).sealed(SEAL), weaken_security=True),
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
    admin = AdminServicer(HealthyReplicas(Roster()), directory, RUNNING, Anybody({}), MEMBERSHIP)
    await admin.Stop(received(router_pb2.StopRequest()), Context())
    assert await stopped()


async def test_a_lost_directory_is_raised_to_the_caller(redis) -> None:
    gone = Directory.connect(DirectoryConfig(url="unix:///nowhere.sock"), SECRET)
    with pytest.raises(Unavailable):
        await Rollouts(RUNNING, Serve(gone), lambda c: c, print, SEAL).poll(gone)
    await gone.close()


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
    admin = AdminServicer(HealthyReplicas(Roster()), directory, RUNNING, Anybody({}), MEMBERSHIP)
    await directory.listen_for_stop(SEAL.launcher)
    request = router_pb2.RolloutRequest(configuration=document_of(GUARDED))
    (notice,) = (await admin.Rollout(received(request), Context())).notices
    assert "Ray's pages of metrics stay open" in notice
    lines = []
    rollouts = Rollouts(RUNNING, Serve(directory), lambda config: config, lines.append, SEAL)
    await rollouts.poll(directory)
    assert lines[0].endswith(notice)
