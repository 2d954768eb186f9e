"""API keys in Redis and `tandem keys`: made once, listed by hash, gone when removed, as all run."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import redis.asyncio

from cluster.cli import main as cli
from cluster.config.deployment import DirectoryConfig
from cluster.config.schema import load_config
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from cluster.discovery.stored_values import StoredKey
from cluster.tenants.api_keys import FileKeys
from cluster.tenants.hashed_keys import hash_of
from cluster.tenants.redis_keys import SharedKeys, keys_of
from engine.errors import ConfigError, PermissionDenied, Unauthenticated, Unavailable
from protos.wire.secret import ClusterSecret, made
from tests.cluster.discovery.members import OTHER_SECRET, SECRET
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

CHAT = {"messages": [{"role": "user", "content": "a b"}]}


@pytest.fixture
def server():
    server = EmbeddedRedis.start()
    yield server
    server.stop()


@pytest.fixture
def secret_file(tmp_path):
    return str(made(tmp_path / "secret"))


@pytest.fixture
async def directory(server, secret_file):
    directory = Directory.connect(DirectoryConfig(url=server.url), ClusterSecret.read(secret_file))
    yield directory
    await directory.close()


@pytest.fixture
async def keys(directory):
    keys = SharedKeys(directory)
    await keys.start()
    yield keys
    await keys.stop()


def known(keys, key):
    try:
        return keys.tenant(f"Bearer {key}")
    except Unauthenticated:
        return None


async def command(*arguments):
    """`tandem keys …`, which has an event loop of its own."""
    return await asyncio.to_thread(cli.main, ["keys", *arguments])


async def test_a_key_of_the_command_is_accepted_until_it_is_removed(
    keys, directory, server, secret_file, capsys
):
    generator = ScriptedGenerator()
    where = ("--redis", server.url, "--secret-file", secret_file)
    async with (
        front_end(generator, keys=keys) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):

        async def status(key):
            headers = {"authorization": f"Bearer {key}", "x-tandem-tenant": "other"}
            answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
            return answer.status_code

        assert await command("add", "acme", *where) == 0
        key = capsys.readouterr().out.strip()
        await eventually(lambda: known(keys, key) == "acme")
        assert await status(key) == 200
        assert [request.tenant for request in generator.requests] == ["acme"]
        assert await status(hash_of(key)) == 401
        assert await command("list", *where) == 0
        listed = capsys.readouterr().out
        assert listed.split() == [hash_of(key)[:12], "tenant", "acme"] and key not in listed
        assert await command("remove", hash_of(key)[:12], *where) == 0
        await eventually(lambda: known(keys, key) is None)
        assert await status(key) == 401
    assert (await directory.api_keys())[1] == []
    async with redis.asyncio.Redis.from_url(server.url) as client:
        assert not await client.exists("tandem:key_seals")


async def test_keys_stay_through_an_outage_and_where_redis_has_lost_them(keys, directory, server):
    for key, tenant in (("key-1", "acme"), ("key-2", "acme"), ("key-3", "other")):
        await directory.add_api_key(hash_of(key), tenant)
    await keys.poll()
    assert [known(keys, f"key-{n}") for n in (1, 2, 3, 4)] == ["acme", "acme", "other", None]
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.flushall()
    await keys.poll()
    assert known(keys, "key-1") == "acme"
    # As many changes as there were before.
    for number in (7, 8, 9):
        await directory.add_api_key(hash_of(f"key-{number}"), "acme")
    await keys.poll()
    assert (known(keys, "key-1"), known(keys, "key-9")) == (None, "acme")
    await directory.remove_api_key(hash_of("key-9"))
    await keys.poll()
    assert known(keys, "key-9") is None
    server.stop()
    await keys.poll()


async def test_an_invalid_key_in_redis_is_ignored(keys, directory):
    await directory.add_api_key("abc", "acme")
    await directory.add_api_key(hash_of("key-1"), "not a name")
    await directory.add_api_key(hash_of("key-2"), "acme")
    await keys.poll()
    assert [known(keys, f"key-{n}") for n in (1, 2)] == [None, "acme"]


async def test_keys_in_redis_have_rights(directory):
    await directory.add_api_key(hash_of("t"), "acme")
    await directory.add_api_key(hash_of("o"), "alice", "operator")
    keys = SharedKeys(directory, operators=[hash_of("local")])
    await keys.poll()
    assert [keys.operator(f"Bearer {key}") for key in ("o", "local")] == ["alice", "local"]
    with pytest.raises(PermissionDenied):
        keys.operator("Bearer t")
    await directory.remove_api_key(hash_of("o"))
    assert (await directory.api_keys())[1] == [StoredKey(hash_of("t"), "acme", "tenant", True)]
    await keys.poll()
    with pytest.raises(Unauthenticated):
        keys.operator("Bearer o")


async def test_a_writer_of_redis_adds_no_key_and_no_right(directory, server, caplog):
    keys = SharedKeys(directory)
    stranger = Directory.connect(DirectoryConfig(url=server.url), OTHER_SECRET)
    await directory.add_api_key(hash_of("t"), "acme")
    await directory.add_api_key(hash_of("renamed"), "acme")
    await stranger.add_api_key(hash_of("of-another-secret"), "mallory", "operator")
    await stranger.close()
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        seal = await client.hget("tandem:key_seals", hash_of("t"))
        for name, seals in (("plain", None), ("copied", seal), ("empty", ""), ("odd", "é")):
            await client.hset("tandem:operator_keys", hash_of(name), "mallory")
            if seals is not None:
                await client.hset("tandem:key_seals", hash_of(name), seals)
        await client.hset("tandem:operator_keys", hash_of("t"), "acme")  # another right
        await client.hset("tandem:api_keys", hash_of("renamed"), "other")
        for _ in range(3):
            await client.incr("tandem:api_keys:version")
            await keys.poll()
    for forged in ("plain", "copied", "empty", "odd", "of-another-secret", "renamed"):
        with pytest.raises(Unauthenticated):
            keys.operator(f"Bearer {forged}")
    assert (known(keys, "t"), known(keys, "renamed")) == ("acme", None)
    with pytest.raises(PermissionDenied):
        keys.operator("Bearer t")
    (line,) = [one for one in caplog.records if "without a seal" in one.message]
    assert line.count == 7 and "mallory" not in caplog.text


async def test_an_unsealed_entry_is_listed_as_such_and_can_be_removed(
    directory, server, secret_file, capsys
):
    where = ("--redis", server.url, "--secret-file", secret_file)
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.hset("tandem:api_keys", hash_of("old"), "acme")
        await client.hset("tandem:operator_keys", "\x1b[2J", "mal\x1blory")
    assert await command("list", *where) == 0
    listed = capsys.readouterr().out
    assert "\x1b" not in listed and listed.count("no seal: refused") == 2
    assert await command("remove", hash_of("old")[:12], *where) == 0
    assert [entry.owner for entry in (await directory.api_keys())[1]] == ["mal\x1blory"]


async def test_without_the_secret_the_command_says_what_to_set(server, tmp_path, capsys):
    for action in (("add", "acme"), ("list",), ("remove", "0123456789")):
        assert await command(*action, "--redis", server.url) == 2
        assert "--secret-file FILE" in capsys.readouterr().err
    assert await command("list", "--file", "x", "--secret-file", "y") == 2
    assert "belongs to --redis" in capsys.readouterr().err
    config = tmp_path / "tandem.yaml"
    config.write_text(f"router: {{api_keys: redis}}\ndirectory: {{url: '{server.url}'}}")
    assert await command("add", "acme", "--config", str(config)) == 2
    assert "redis needs security.secret_file" in capsys.readouterr().err


async def test_without_redis_a_router_does_not_begin(server, directory):
    server.stop()
    with pytest.raises(Unavailable):
        await SharedKeys(directory).start()


def test_keys_in_a_file_are_made_listed_and_removed(tmp_path, capsys):
    file = tmp_path / "keys.yaml"
    where = ["--file", str(file)]
    for tenant in ("acme", "acme", "other"):
        assert cli.main(["keys", "add", tenant, *where]) == 0
    made = capsys.readouterr().out.split()
    assert len(set(made)) == 3 and file.stat().st_mode & 0o777 == 0o600
    assert not any(key in file.read_text() for key in made)
    keys = FileKeys(file)
    assert [known(keys, key) for key in made] == ["acme", "acme", "other"]
    assert cli.main(["keys", "remove", hash_of(made[2]), *where]) == 0
    file.chmod(0o640)
    assert cli.main(["keys", "remove", hash_of(made[0])[:8].upper(), *where]) == 0
    keys = FileKeys(file)
    assert [known(keys, key) for key in made] == [None, "acme", None]
    assert file.stat().st_mode & 0o777 == 0o640 and list(tmp_path.iterdir()) == [file]


def test_the_configuration_says_where_the_keys_are(tmp_path, capsys, server, secret_file):
    config = tmp_path / "tandem.yaml"
    security = f"security: {{secret_file: {secret_file}}}"
    for text, listed in (
        (f"router: {{api_keys: {tmp_path / 'keys.yaml'}}}", "acme"),
        (f"router: {{api_keys: redis}}\ndirectory: {{url: '{server.url}'}}\n{security}", "acme"),
    ):
        config.write_text(text)
        assert cli.main(["keys", "add", "acme", "--config", str(config)]) == 0
        assert cli.main(["keys", "list", "--config", str(config)]) == 0
        assert capsys.readouterr().out.split()[-1] == listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "not a name"], "tenant must be"),
        (["add"], "needs a name"),
        (["remove", "abc"], "too short"),
        (["remove", "0123456789"], "`tandem keys list` shows the hashes"),
    ],
)
def test_an_error_of_the_keys_command_is_one_line(tmp_path, capsys, arguments, message):
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {}\n")
    assert cli.main(["keys", *arguments, "--file", str(file)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_keys_in_redis_need_one_that_keeps_them_and_a_secret_that_seals_them():
    overrides = {"router.api_keys": "redis"}
    with pytest.raises(ConfigError, match=r"directory\.url"):
        load_config(overrides=overrides)
    overrides["directory.url"] = "redis://r"
    with pytest.raises(ConfigError, match=r"security\.secret_file"):
        load_config(overrides=overrides)
    overrides["security.secret_file"] = "/run/secret"
    config = load_config(overrides=overrides)
    assert config.router.api_keys == "redis"
    directory = Directory.connect(config.directory, SECRET)
    assert isinstance(keys_of("redis", directory), SharedKeys)
    assert keys_of(None, directory) is None
