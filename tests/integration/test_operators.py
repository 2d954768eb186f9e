"""Only an operator's key operates a cluster: not an address, not a tenant's key, not a proxy."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import grpc
import pytest
import yaml

from cluster.client.admin_client import (
    fetch_status,
    list_requests,
    request_purge,
    request_role,
    request_rollout,
    request_stop,
)
from cluster.config.schema import TandemConfig
from cluster.discovery.rollout import document_of
from cluster.tenants.hashed_keys import hash_of
from engine.errors import InvalidRequest, PermissionDenied, TandemError, Unauthenticated
from protos.router_pb2 import ListRequestsRequest
from tests.integration.local import OPERATOR_KEY, cluster

LAUNCHER = "a launcher"
CALLS = {
    "status": lambda address, key: fetch_status(address, key),
    "stop": lambda address, key: request_stop(address, key),
    "role": lambda address, key: request_role(address, "nobody", "decode", key),
    "purge": lambda address, key: request_purge(address, "acme", key),
    "requests": lambda address, key: list_requests(address, ListRequestsRequest(), key),
    "rollout": lambda address, key: request_rollout(address, "no JSON", key=key),
}


@pytest.fixture(autouse=True)
def no_key_of_this_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TANDEM_OPERATOR_KEY", raising=False)


@pytest.fixture
def keyed(config, tmp_path):
    """With keys of a tenant and of an operator in a file."""
    file = tmp_path / "keys.yaml"
    owners = {"tenants": {"acme": [hash_of("t")]}, "operators": {"alice": [hash_of("o")]}}
    file.write_text(yaml.safe_dump(owners))
    return replace(config, router=replace(config.router, api_keys=str(file)))


@asynccontextmanager
async def tcp_proxy(address):
    """The address of a proxy on this host, as a sidecar is: it carries bytes, and adds nothing."""
    host, _, port = address.rpartition(":")
    tasks = set()

    async def carry(reader, writer):
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def serve(reader, writer):
        further = await asyncio.open_connection(host, int(port))
        for pair in ((reader, further[1]), (further[0], writer)):
            tasks.add(asyncio.create_task(carry(*pair)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def outcome(call, address, key):
    try:
        return type(await call(address, key))
    except TandemError as error:
        return type(error)


async def test_every_call_needs_an_operators_key_through_a_proxy_or_not(keyed):
    async with cluster(keyed) as local:
        direct = local.router.grpc_address
        await local.directory.listen_for_stop(LAUNCHER)
        async with tcp_proxy(direct) as proxied:
            for address in (direct, proxied):
                for call in CALLS.values():
                    for key in (None, "", "guess", hash_of("o")):
                        assert await outcome(call, address, key) is Unauthenticated
                    assert await outcome(call, address, "t") is PermissionDenied
                for key in ("o", OPERATOR_KEY):
                    assert (await fetch_status(address, key)).replicas
            assert await local.directory.listen_for_stop(LAUNCHER) is None
            await request_stop(proxied, "o")
            assert await local.directory.listen_for_stop(LAUNCHER)
            await local.directory.clear_stop()


async def test_without_api_keys_a_stranger_on_the_host_operates_nothing(config):
    async with cluster(config) as local:
        address = local.router.grpc_address
        for call in CALLS.values():
            assert await outcome(call, address, None) is Unauthenticated
        assert (await fetch_status(address, OPERATOR_KEY)).replicas
        answer = await local.client.complete([1, 2, 3], max_tokens=2)
        assert answer.choices


async def test_bytes_that_are_no_message_tell_a_stranger_nothing(config):
    async with (
        cluster(config) as local,
        grpc.aio.insecure_channel(local.router.grpc_address) as channel,
    ):
        for method in ("Status", "Stop", "Rollout", "GiveRole", "ListRequests"):
            call = channel.unary_unary(f"/tandem.internal.v1.Admin/{method}")
            for key, code in (
                (None, grpc.StatusCode.UNAUTHENTICATED),
                (OPERATOR_KEY, grpc.StatusCode.INVALID_ARGUMENT),
            ):
                metadata = () if key is None else (("authorization", f"Bearer {key}"),)
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call(b"\xff\xff\xff", metadata=metadata)
                assert failed.value.code() is code


async def test_a_rollout_weakens_authentication_only_for_an_operator_who_says_so(keyed, caplog):
    open_config = replace(keyed, router=replace(keyed.router, api_keys=None))
    document = document_of(open_config)
    async with cluster(keyed) as local:
        address = local.router.grpc_address
        await local.directory.listen_for_stop(LAUNCHER)
        for key, refusal in ((None, Unauthenticated), ("t", PermissionDenied)):
            with pytest.raises(refusal):
                await request_rollout(address, document, weaken_security=True, key=key)
        with pytest.raises(InvalidRequest, match=r"router\.api_keys.*--weaken-security"):
            await request_rollout(address, document, key="o")
        assert await local.directory.take_rollout() is None
        answer = await request_rollout(address, document, weaken_security=True, key="o")
        assert answer.weakens == [f"router.api_keys: {keyed.router.api_keys} removed"]
        taken = json.loads(await local.directory.take_rollout() or "")
        assert (taken["operator"], taken["weaken_security"]) == ("alice", True)
        (line,) = [one for one in caplog.records if one.message == "rollout requested"]
        assert (line.operator, line.weakens) == ("alice", list(answer.weakens))
        await local.directory.clear_stop()
        await local.directory.listen_for_stop(LAUNCHER)
        same = document_of(TandemConfig(router=keyed.router))
        assert not (await request_rollout(address, same, key="o")).weakens
        await local.directory.clear_stop()
