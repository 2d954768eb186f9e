"""A rollout as the launcher carries it out: what follows what, and what happens where it fails."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from cluster.config.deployment import DirectoryConfig
from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig
from cluster.config.version import config_version
from cluster.discovery.redis_directory import Directory
from cluster.discovery.rollout import (
    RolloutRequest,
    Rollouts,
    RolloutState,
    document_of,
    next_config,
)
from cluster.discovery.version_handover import there
from cluster.replica_record import ReplicaRecord
from engine.errors import ConfigError, Unavailable
from prefill_pool.config import PrefillConfig
from tests.cluster.discovery.launcher import (
    OTHER,
    RUNNING,
    SEAL,
    Serve,
    rolled_out,
)
from tests.cluster.discovery.members import SECRET
from tests.cluster.discovery.test_version_handover import record


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


async def test_a_restart_replaces_all_although_nothing_differs(directory) -> None:
    version = config_version(RUNNING)
    for role in ("prefill", "decode", "router"):
        await directory.register(replace(record(f"old {role}", role), config=version))
    serve = Serve(directory)
    request = RolloutRequest("id", "", restart=True)
    _, state, _ = await rolled_out(directory, serve, request)
    assert serve.begun == [RUNNING]
    assert (state.state, state.version) == ("serving", version)


async def test_a_restart_does_not_take_the_old_ones_for_new_ones(directory) -> None:
    for role in ("prefill", "decode", "router"):
        old = replace(record(role, role), config=config_version(RUNNING))
        await directory.register(old)
    serve = Serve(directory, fails="decode: not enough memory")
    _, state, _ = await rolled_out(directory, serve, RolloutRequest("id", "", restart=True))
    assert (state.state, state.reason) == ("failed", "decode: not enough memory")


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


async def test_a_lost_directory_is_raised_to_the_caller() -> None:
    gone = Directory.connect(DirectoryConfig(url="unix:///nowhere.sock"), SECRET)
    with pytest.raises(Unavailable):
        await Rollouts(RUNNING, Serve(gone), lambda c: c, print, SEAL).poll(gone)
    await gone.close()
