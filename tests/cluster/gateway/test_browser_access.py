"""Which names and origins HTTP accepts, with and without API keys, and what browsers are told."""

from __future__ import annotations

import hashlib
import json
import socket

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from cluster.config.schema import load_config
from cluster.gateway.browser_access import BrowserRules
from cluster.gateway.http_app import create_app
from cluster.tenants.api_keys import FileKeys
from engine.errors import ConfigError
from tests.cluster.gateway.http_listener import CHAT, HELLO, metrics
from tests.cluster.scripted_generator import ScriptedGenerator

PAGE = "https://page.example"
ASKS = {"origin": PAGE, "access-control-request-method": "POST"}


def client(hosts=(), origins=(), keys=None):
    rules = BrowserRules.of(hosts, origins, "router.internal")
    app = create_app(ScriptedGenerator(), metrics, rules=rules, keys=keys)
    return TestClient(app, "http://localhost:8000")


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps({"tenants": {"acme": [hashlib.sha256(b"good").hexdigest()]}}))
    return FileKeys(file)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "127.0.0.1:80",
        "[::1]:8000",
        "10.1.2.3",
        "router.internal",
        socket.gethostname(),
        "more.example:443",
    ],
)
def test_names_of_the_server(host):
    reply = client(hosts=["More.example"]).get("/v1/models", headers={"host": host})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "page.example",
        "localhost.page.example",
        "127.0.0.1.page.example",
        "localhost@page.example",
        "localhost:x",
        "localhost/..",
        "[localhost]",
        "",
        "<script>",
        "a" * 5000,
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/healthz", "/no/such"])
def test_other_names_are_refused_and_never_repeated(host, path):
    reply = client().get(path, headers={"host": host})
    assert reply.status_code == 421
    assert reply.json()["error"]["code"] == "forbidden_host"
    assert not host or host not in reply.text
    assert client(hosts=["*"]).get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:9", "http://[", "x", "://", ""])
def test_pages_of_other_origins_may_not_call(origin):
    reply = client().post(CHAT, json=HELLO, headers={"origin": origin})
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "forbidden_origin"
    with pytest.raises(WebSocketDisconnect):
        client().websocket_connect("/v1/stream", headers={"origin": origin}).__enter__()


def test_pages_of_the_own_origin_may_call():
    headers = {"origin": "http://localhost:8000"}
    assert client().post(CHAT, json=HELLO, headers=headers).status_code == 200


@pytest.mark.parametrize("allowed", [PAGE, "*"])
def test_pages_of_configured_origins_may_call_and_read(allowed):
    caller = client(origins=[allowed])
    asked = caller.options(CHAT, headers=ASKS)
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == allowed
    assert "authorization" in asked.headers["access-control-allow-headers"]
    for reply in (
        caller.post(CHAT, json=HELLO, headers={"origin": PAGE}),
        caller.post(CHAT, json={}, headers={"origin": PAGE}),
    ):
        assert reply.status_code in (200, 400)
        assert reply.headers["access-control-allow-origin"] == allowed
        assert reply.headers.get("vary") == (None if allowed == "*" else "origin")
    if allowed != "*":
        other = {"origin": "https://other.example"}
        assert caller.post(CHAT, json=HELLO, headers=other).status_code == 403
        assert caller.options(CHAT, headers=ASKS | other).status_code == 403


def test_with_keys_the_key_counts_alone(keys):
    caller = client(keys=keys)
    headers = {"host": "public.example", "origin": PAGE}
    assert caller.post(CHAT, json=HELLO, headers=headers).status_code == 401
    headers["authorization"] = "Bearer good"
    reply = caller.post(CHAT, json=HELLO, headers=headers)
    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers
    assert caller.options(CHAT, headers=ASKS).status_code == 405
    assert client(origins=[PAGE], keys=keys).options(CHAT, headers=ASKS).status_code == 204


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/plain; application/json", 415),
        (None, 415),
    ],
)
def test_a_body_must_say_that_it_is_json(kind, status):
    headers = {} if kind is None else {"content-type": kind}
    reply = client().post(CHAT, content=json.dumps(HELLO), headers=headers)
    assert reply.status_code == status
    if status != 200:
        assert reply.json()["error"]["code"] == "unsupported_media_type"
        assert "Content-Type: application/json" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hosts", ["http://name"]),
        ("hosts", ["name:80"]),
        ("hosts", [""]),
        ("hosts", "name"),
        ("origins", ["name"]),
        ("origins", ["https://name/"]),
        ("origins", ["https://Name"]),
        ("origins", ["null"]),
    ],
)
def test_wrong_names_in_the_configuration(field, value):
    with pytest.raises(ConfigError):
        load_config(overrides={f"router.{field}": value})
    good = {"router.hosts": ["a.example", "*"], "router.origins": ["https://a.example:8443", "*"]}
    assert load_config(overrides=good).router.hosts == ("a.example", "*")
