"""A router's process imports no torch, which would take most of the time of its start."""

from __future__ import annotations

import json
import subprocess
import sys

from cluster.config.schema import located
from cluster.deploy.embedded_redis import EmbeddedRedis
from engine.config import ModelConfig
from engine.model_description import describe
from engine.text.tokenizer import Tokenizer
from protos.wire.secret import made

CHAT = [{"role": "user", "content": "Bonjour, ça va?"}]
# What RouterReplica does, but for Ray; then what the router has of the model.
ROUTER = """
import asyncio, json, sys

import cluster.deploy.serve_app
import cluster.router.server
assert "torch" not in sys.modules
from cluster.config.schema import load_config
from cluster.discovery.redis_directory import Directory
from engine.model_description import without_torch

async def main(url, secret, chat):
    without_torch()
    overrides = {"directory.url": url, "security.secret_file": secret}
    overrides |= {"router.http_port": 0, "router.grpc_port": 0}
    config = load_config(None, overrides)
    directory = Directory.of(config)
    router = await cluster.router.server.RouterServer.start(config, "router-0", directory)
    model = await cluster.router.server.ServedModel.load(config)
    told = [one for one in (await directory.members()) if one.role == "router"]
    await router.stop()
    await directory.close()
    described = model.description
    print(json.dumps({
        "modules": [name for name in sys.modules if name.split(".")[0] == "torch"],
        "models": [name for name in sys.modules if name.split(".")[-1] == "modeling_llama"],
        "stages": list(told[0].start_s),
        "description": {name: str(getattr(described, name)) for name in described.__slots__[:-1]},
        "ids": model.tokenizer.render_chat(json.loads(chat)).ids,
    }))

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_router_starts_without_torch_and_knows_the_model_as_replicas_do(tmp_path):
    redis = EmbeddedRedis.start()
    try:
        arguments = (redis.url, str(made(tmp_path / "secret")), json.dumps(CHAT))
        done = subprocess.run(
            [sys.executable, "-c", ROUTER, *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        redis.stop()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["modules"] == ["torch"]  # the entry that keeps it out
    assert not found["models"]
    assert found["stages"] == ["model", "directory", "front_ends"]
    assert "PyTorch was not found" not in done.stderr
    description = describe(ModelConfig(path=located("demo")))
    expected = {name: str(getattr(description, name)) for name in description.__slots__[:-1]}
    assert found["description"] == expected
    tokenizer = Tokenizer.load(str(description.folder))
    assert found["ids"] == tokenizer.render_chat(CHAT).ids
