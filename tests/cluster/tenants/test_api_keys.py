"""API keys: the key alone proves the tenant of a request."""

from __future__ import annotations

import hashlib
import os

import grpc
import httpx
import pytest

from cluster.config.router import RouterConfig
from cluster.gateway.grpc_server import start
from cluster.tenants.api_keys import FileKeys
from engine.errors import ConfigError, Unauthenticated
from tandem_client import Client
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator

KEYS = {"acme": ["key-1", "key-2"], "other": ["key-3"]}
IN_OWN_HEADER = {"x-api-key": "key-3"}
CHAT = {"messages": [{"role": "user", "content": "a b"}]}


def write(path, keys):
    lines = [
        f"  {tenant}: [{', '.join(hashlib.sha256(key.encode()).hexdigest() for key in own)}]\n"
        for tenant, own in keys.items()
    ]
    path.write_text("tenants:\n" + "".join(lines))


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def file(tmp_path):
    write(tmp_path / "keys.yaml", KEYS)
    return tmp_path / "keys.yaml"


@pytest.fixture
def keys(file, clock):
    return FileKeys(file, lambda: clock[0])


def test_a_key_is_its_tenants_and_a_tenant_may_have_several(keys):
    assert [keys.tenant(f"Bearer {key}") for key in ("key-1", "key-2", "key-3")] == [
        "acme",
        "acme",
        "other",
    ]
    assert keys.tenant("bearer  key-1 ") == "acme"


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", "key-1", "Basic key-1", "Bearer key-4", "Bearer é"]
)
def test_any_other_authorization_is_refused(keys, given):
    with pytest.raises(Unauthenticated) as refused:
        keys.tenant(given)
    assert "key-" not in refused.value.message


def test_a_call_without_a_key_is_told_where_the_key_goes(keys):
    with pytest.raises(Unauthenticated, match=r"Authorization: Bearer KEY.*TANDEM_API_KEY"):
        keys.tenant(None)


def test_the_hash_of_a_key_is_no_key(keys):
    with pytest.raises(Unauthenticated):
        keys.tenant("Bearer " + hashlib.sha256(b"key-1").hexdigest())


def test_keys_change_without_a_restart_and_a_broken_file_changes_nothing(keys, file, clock):
    write(file, {"acme": ["key-9"]})
    os.utime(file, ns=(1, 1))
    clock[0] = 2.0
    assert keys.tenant("Bearer key-9") == "acme"
    with pytest.raises(Unauthenticated):
        keys.tenant("Bearer key-1")
    for broken in ("tenants: [", "{}"):
        file.write_text(broken)
        clock[0] += 2.0
        assert keys.tenant("Bearer key-9") == "acme"
    file.unlink()
    clock[0] += 2.0
    assert keys.tenant("Bearer key-9") == "acme"
    write(file, KEYS)
    clock[0] += 2.0
    assert keys.tenant("Bearer key-1") == "acme"


@pytest.mark.parametrize(
    "text",
    [
        "nothing: here",
        "tenants: {acme: []}",
        "tenants: {acme: [abc]}",
        "tenants: {'a b': [" + "0a" * 32 + "]}",
        "tenants: {a: [" + "0a" * 32 + "], b: [" + "0a" * 32 + "]}",
    ],
)
def test_a_wrong_file_is_refused_at_the_start(tmp_path, text):
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"keys\.yaml"):
        FileKeys(tmp_path / "keys.yaml")
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        FileKeys(tmp_path / "absent.yaml")


async def test_over_http_the_key_and_no_header_names_the_tenant(keys):
    generator = ScriptedGenerator()
    async with (
        front_end(generator, keys=keys) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        claimed = {"x-tandem-tenant": "other"}
        refused = await client.post("/v1/chat/completions", json=CHAT, headers=claimed)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert not generator.requests
        proved = claimed | {"authorization": "Bearer key-1"}
        for path, body in (("chat/completions", CHAT), ("completions", {"prompt": "a"})):
            answer = await client.post(f"/v1/{path}", json=body, headers=proved)
            assert answer.status_code == 200
        assert [request.tenant for request in generator.requests] == ["acme", "acme"]
        named = await client.post("/v1/completions", json={"prompt": "a"}, headers=IN_OWN_HEADER)
        assert (named.status_code, generator.requests[-1].tenant) == (200, "other")
        both = IN_OWN_HEADER | {"authorization": "Bearer nobody's"}
        assert (await client.get("/v1/models", headers=both)).status_code == 401


async def test_over_grpc_the_key_and_no_request_field_names_the_tenant(keys):
    generator = ScriptedGenerator()
    server = await start(generator, keys=keys)
    address = f"127.0.0.1:{server.port}"
    try:
        async with Client(address) as client:
            with pytest.raises(Unauthenticated):
                await client.complete("a", tenant="acme")
            with pytest.raises(Unauthenticated):
                await client.cancel("r1")
        async with Client(address, api_key="key-3") as client:
            await client.complete("a", tenant="acme")
            assert not await client.cancel("nobody")
    finally:
        await server.stop(0)
    assert [request.tenant for request in generator.requests] == ["other"]


def test_no_keys_is_the_default():
    assert RouterConfig().api_keys is None
    assert grpc.StatusCode[Unauthenticated.code] is grpc.StatusCode.UNAUTHENTICATED
