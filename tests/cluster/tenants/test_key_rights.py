"""Each key has one right: a tenant's, an operator's, or that of a reader of metrics."""

from __future__ import annotations

import logging

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cluster.cli import main as cli
from cluster.gateway.grpc_server import start
from cluster.tenants.api_keys import ApiKeys, FileKeys
from cluster.tenants.hashed_keys import KeyOwner, hash_of, read_keys
from engine.errors import ConfigError, PermissionDenied, TandemError, Unauthenticated
from tandem_client import Client
from tests.cluster.gateway.http_listener import asking, error_of
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.metrics_page import recorded

OWNERS = {
    hash_of("t"): KeyOwner("acme", "tenant"),
    hash_of("o"): KeyOwner("alice", "operator"),
    hash_of("m"): KeyOwner("prometheus", "metrics"),
}
CHAT = {"messages": [{"role": "user", "content": "a b"}]}


@pytest.fixture
def keys():
    return ApiKeys(OWNERS, operators=[hash_of("local")])


def outcome(check, key):
    try:
        return check(None if key is None else f"Bearer {key}")
    except TandemError as error:
        return type(error)


@pytest.mark.parametrize(
    ("key", "tenant", "operator", "reader"),
    [
        ("t", "acme", PermissionDenied, PermissionDenied),
        ("o", PermissionDenied, "alice", "alice"),
        ("m", PermissionDenied, PermissionDenied, "prometheus"),
        ("local", PermissionDenied, "local", "local"),
        ("other", Unauthenticated, Unauthenticated, Unauthenticated),
        (None, Unauthenticated, Unauthenticated, Unauthenticated),
        (hash_of("o"), Unauthenticated, Unauthenticated, Unauthenticated),
    ],
)
def test_a_key_opens_what_its_right_names_and_nothing_else(keys, key, tenant, operator, reader):
    checks = (keys.tenant, keys.operator, keys.metrics_reader)
    assert [outcome(check, key) for check in checks] == [tenant, operator, reader]


def test_without_any_operators_key_the_refusal_says_how_to_make_one():
    for keys in (ApiKeys({}), ApiKeys({hash_of("t"): KeyOwner("acme")})):
        with pytest.raises(Unauthenticated, match=r"tandem keys add --operator NAME"):
            keys.operator("Bearer guess")


def test_refusals_are_logged_once_a_second_and_without_the_key(caplog):
    now = [0.0]
    keys = ApiKeys(OWNERS, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, "cluster.tenants.api_keys"):
        for _ in range(1000):
            outcome(keys.tenant, "a-guess")
            now[0] += 0.002
        outcome(keys.operator, "t")
    assert 2 <= len(caplog.records) <= 3
    assert sum(record.count for record in caplog.records[:2]) > 400
    assert "a-guess" not in str([vars(record) for record in caplog.records])


async def test_over_http_each_page_asks_for_its_right(keys):
    generator = ScriptedGenerator()
    generator.gone = ("decode",)
    async with asking(generator, keys=keys) as client:

        async def status(path, key=None):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return (await client.get(path, headers=headers)).status_code

        for path in ("/v1/models", f"/v1/models/{generator.model.name}"):
            assert [await status(path, key) for key in (None, "t", "o", "m")] == [
                401, 200, 403, 403,
            ]  # fmt: skip
        assert [await status("/metrics", key) for key in (None, "t", "o", "m")] == [
            401, 403, 200, 200,
        ]  # fmt: skip
        health = await client.get("/healthz")
        assert (health.status_code, health.json()) == (503, {"status": "unavailable"})
        refused = await client.post(
            "/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer o"}
        )
        error = error_of(refused, 403)
        assert error["code"] == "permission_denied"
        assert error["message"] == "this is an operator's key, and this call needs a tenant's key"
    assert not generator.requests


async def test_without_keys_the_metrics_and_models_are_open():
    async with asking(ScriptedGenerator()) as client:
        for path in ("/metrics", "/v1/models", "/healthz"):
            assert (await client.get(path)).status_code == 200


async def test_over_grpc_models_ask_for_a_tenants_key_and_health_for_none(keys):
    server = await start(ScriptedGenerator(), keys=keys)
    address = f"127.0.0.1:{server.port}"
    try:
        for key, refusal in ((None, Unauthenticated), ("o", PermissionDenied)):
            async with Client(address, api_key=key) as client:
                with pytest.raises(refusal):
                    await client.model()
                with pytest.raises(refusal):
                    await client.complete("a")
        async with Client(address, api_key="t") as client:
            assert (await client.model()).name
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(0)


@pytest.mark.parametrize("method", ["Generate", "Score", "Cancel", "GetModel"])
async def test_over_grpc_the_key_is_asked_for_before_anything_is_parsed(keys, method):
    server = await start(ScriptedGenerator(), keys=keys)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_unary(f"/tandem.v1.Inference/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(b"these bytes are no message", timeout=10)
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await server.stop(0)


async def test_refusals_are_counted_by_class(keys):
    with recorded() as page:
        async with asking(ScriptedGenerator(), keys=keys) as client:
            await client.get("/metrics")
            await client.get("/metrics", headers={"authorization": "Bearer t"})
        for name in ("Unauthenticated", "PermissionDenied"):
            labels = {"front_end": "http", "error": name}
            assert page.value("tandem_front_end_errors_total", **labels) == 1


def test_keys_of_each_right_are_made_listed_and_removed(tmp_path, capsys):
    file = tmp_path / "keys.yaml"
    where = ["--file", str(file)]
    for arguments in (["--operator", "alice"], ["--metrics", "prometheus"], ["alice"]):
        assert cli.main(["keys", "add", *arguments, *where]) == 0
    made = capsys.readouterr().out.split()
    assert sorted(yaml.safe_load(file.read_text())) == ["metrics", "operators", "tenants"]
    keys = FileKeys(file)
    assert outcome(keys.operator, made[0]) == "alice"
    assert outcome(keys.metrics_reader, made[1]) == "prometheus"
    assert outcome(keys.tenant, made[2]) == "alice"
    assert cli.main(["keys", "list", *where]) == 0
    listed = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    assert listed == [["metrics", "prometheus"], ["operator", "alice"], ["tenant", "alice"]]
    assert cli.main(["keys", "remove", hash_of(made[0]), *where]) == 0
    assert sorted(owner.right for owner in read_keys(file).values()) == ["metrics", "tenant"]
    capsys.readouterr()
    assert cli.main(["keys", "list", "--operator", "alice", *where]) == 2
    assert "belong to `tandem keys add`" in capsys.readouterr().err
    assert cli.main(["keys", "add", "acme", "--operator", "alice", *where]) == 2
    assert "needs a name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "opens", "use"),
    [
        (
            ["acme"],
            "requests and the description of models",
            "set TANDEM_API_KEY for `tandem chat`",
        ),
        (
            ["--operator", "acme"],
            "`tandem status`, `top`, `requests`, `explain`, `role`, `rollout`, `purge`, "
            "`stop`, the console and /metrics",
            "set TANDEM_OPERATOR_KEY for these commands",
        ),
        (["--metrics", "acme"], "/metrics alone", "send the header `Authorization: Bearer KEY`"),
    ],
)
def test_a_new_key_is_alone_on_stdout_and_stderr_tells_its_use(
    tmp_path, capsys, arguments, opens, use
):
    file = tmp_path / "keys.yaml"
    assert cli.main(["keys", "add", *arguments, "--file", str(file)]) == 0
    out, err = capsys.readouterr()
    (digest,) = read_keys(file)
    assert out == f"{out.strip()}\n"
    assert hash_of(out.strip()) == digest
    right, kept, used = err.splitlines()
    assert right == f"acme: this key opens {opens}."
    assert kept == f"Store it now: {file} keeps its hash alone, as {digest[:12]}."
    assert used.startswith(f"To use it, {use}")
    assert out.strip() not in err


@pytest.mark.parametrize(
    "text",
    [
        "operator: {alice: [" + "0a" * 32 + "]}",
        "operators: [" + "0a" * 32 + "]",
        "operators: {'a b': [" + "0a" * 32 + "]}",
        "{tenants: {a: [" + "0a" * 32 + "]}, operators: {a: [" + "0a" * 32 + "]}}",
    ],
)
def test_a_file_that_is_wrong_about_rights_is_refused(tmp_path, text):
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"keys\.yaml"):
        read_keys(tmp_path / "keys.yaml")
