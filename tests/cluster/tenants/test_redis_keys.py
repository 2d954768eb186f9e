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
from cluster.tenants.api_keys import FileKeys
from cluster.tenants.hashed_keys import hash_of
from cluster.tenants.redis_keys import SharedKeys, keys_of
from engine.errors import ConfigError, PermissionDenied, Unauthenticated, Unavailable
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
async def directory(server):
    directory = Directory.connect(DirectoryConfig(url=server.url))
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
    keys, directory, server, capsys
):
    generator = ScriptedGenerator()
    where = ("--redis", server.url)
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
        assert await status(key) == 401
        await eventually(lambda: known(keys, key) == "acme", 20)
        assert await status(key) == 200
        assert [request.tenant for request in generator.requests] == ["acme"]
        assert await status(hash_of(key)) == 401
        assert await command("list", *where) == 0
        listed = capsys.readouterr().out
        assert listed.split() == [hash_of(key)[:12], "tenant", "acme"] and key not in listed
        assert await command("remove", hash_of(key)[:12], *where) == 0
        await eventually(lambda: known(keys, key) is None, 20)
        assert await status(key) == 401
    stored = (await directory.api_keys())[1]
    assert stored == {"tenant": {}, "operator": {}, "metrics": {}}


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


async def test_keys_in_redis_have_rights_and_one_with_two_is_passed_over(directory):
    await directory.add_api_key(hash_of("t"), "acme")
    await directory.add_api_key(hash_of("o"), "alice", "operator")
    await directory.add_api_key(hash_of("both"), "acme")
    await directory.add_api_key(hash_of("both"), "alice", "operator")
    keys = SharedKeys(directory, operators=[hash_of("local")])
    await keys.poll()
    assert [keys.operator(f"Bearer {key}") for key in ("o", "local")] == ["alice", "local"]
    for key, refusal in (("t", PermissionDenied), ("both", Unauthenticated)):
        with pytest.raises(refusal):
            keys.operator(f"Bearer {key}")
    assert known(keys, "both") is None
    await directory.remove_api_key(hash_of("both"))
    await directory.remove_api_key(hash_of("o"))
    assert (await directory.api_keys())[1] == {
        "tenant": {hash_of("t"): "acme"},
        "operator": {},
        "metrics": {},
    }
    await keys.poll()
    with pytest.raises(Unauthenticated):
        keys.operator("Bearer o")


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


def test_the_configuration_says_where_the_keys_are(tmp_path, capsys, server):
    config = tmp_path / "tandem.yaml"
    for text, listed in (
        (f"router: {{api_keys: {tmp_path / 'keys.yaml'}}}", "acme"),
        (f"router: {{api_keys: redis}}\ndirectory: {{url: '{server.url}'}}", "acme"),
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
        (["remove", "0123456789"], "no key whose hash"),
    ],
)
def test_an_error_of_the_keys_command_is_one_line(tmp_path, capsys, arguments, message):
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {}\n")
    assert cli.main(["keys", *arguments, "--file", str(file)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_keys_in_redis_need_one_that_keeps_them():
    with pytest.raises(ConfigError, match=r"directory\.url"):
        load_config(overrides={"router.api_keys": "redis"})
    overrides = {"router.api_keys": "redis", "directory.url": "redis://r"}
    config = load_config(overrides=overrides)
    assert config.router.api_keys == "redis"
    directory = Directory.connect(config.directory)
    assert isinstance(keys_of("redis", directory), SharedKeys)
    assert keys_of(None, directory) is None
